"""Where the looseness of the paper's bounds sits, step by step."""

from collections.abc import Sequence
from typing import Literal

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from analysis.bounds import waterfall
from analysis.chains import ECE_CHAIN, LAMBDA_CHAIN
from analysis.plugins import Count, SettingError
from analysis.run import Run
from figures.curves import entitle, panels
from figures.kinds import Drawing, Kind
from figures.records import groups, thin
from figures.style import OKABE_ITO, logarithmic

NAMES = {
    "confidence_gap": "|accuracy − mean confidence|",
    "ece": "ECE",
    "mean_absolute_gap": "mean |c − p̂|",
    "mean_one_minus_p_true": "mean (1 − p_y)",
    "sigmoid_moment": "mean σ(log(K−1) − m)",
    "bound_ece": "(K−1) Q",
    "lambda_max": "GN sharpness",
    "jacobian_hessian": "mean |J|² λ(H_z)",
    "norm_hessian": "C_J² mean λ(H_z)",
    "norm_gini": "2 C_J² mean p̂(1−p̂)",
    "norm_one_minus_confidence": "2 C_J² mean (1−p̂)",
    "norm_one_minus_p_true": "2 C_J² mean (1−p_y)",
    "norm_sigmoid": "2 C_J² mean σ(log(K−1) − m)",
    "bound_lambda": "2 C_J² (K−1) Q",
}
"""The terms of both chains, in the order of the inequalities."""


class Slack(Kind):
    """Every term of the chain of inequalities from ECE up to (K-1) Q, and of that from sharpness, an optimizer each.

    Lines are medians over runs, on a logarithmic axis, so the distance between two is the slack of their link. Above
    the dotted line at 1 a bound on ECE says nothing. The chain of sharpness needs the recorded Jacobian norms.

    Attributes:
        split: sample of the ECE chain; the chain of sharpness is of the training split.
        points: a longer trajectory is thinned for drawing.
    """

    split: Literal["train", "test"] = "train"
    points: Count = 2000

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`.

        Raises:
            SettingError: no run has recorded margins.
            ViolationError: a link fails beyond what rounding can do.
        """
        grouped = {
            name: [r for r in members if {f"examples_{self.split}", f"logits_{self.split}"} & set(r.streams)]
            for name, members in groups(runs).items()
        }
        grouped = {name: members for name, members in grouped.items() if members}
        if not grouped:
            raise SettingError(f"slack: no run has recorded the stream examples_{self.split}")
        every = {name: [waterfall(run, self.split) for run in members] for name, members in grouped.items()}
        medians = {name: pd.concat(frames).groupby(level=0).median() for name, frames in every.items()}
        chains: list[Sequence[str]] = [ECE_CHAIN]
        if any("bound_lambda" in frame for frame in medians.values()):
            chains.append(LAMBDA_CHAIN)
        figure, grid = panels(len(chains), len(medians), height=2.2, sharex=True, sharey="row")
        words = []
        for column, (name, frame) in zip(grid.T, medians.items(), strict=True):
            column[0].set_title(name)
            column[-1].set_xlabel("step")
            for axes, chain in zip(column, chains, strict=True):
                self._chain(axes, frame, chain)
            column[0].axhline(1, color=OKABE_ITO["black"], linewidth=0.6, linestyle=":", label="_vacuous")
            vacuous = pd.concat([one["ece_vacuous"] for one in every[name]]).mean()
            ratio = (frame["bound_ece"] / frame["ece"]).median()
            words.append(
                f"{name}: the bound on ECE is vacuous at {vacuous:.0%} of steps, its median slack {ratio:.3g}."
            )
        for axes, text in zip(grid[:, 0], (f"ECE chain ({self.split})", "sharpness chain"), strict=False):
            axes.set_ylabel(text)
            logarithmic(axes)
        handles = {line.get_label(): line for axes in grid.ravel() for line in axes.lines}
        shown = [line for text, line in handles.items() if not str(text).startswith("_")]
        figure.legend(handles=shown, loc="outside lower center", ncols=3)
        used = [run for members in grouped.values() for run in members]
        heading = entitle(figure, "The waterfall of the bounds, medians over runs", used)
        return {self.split: Drawing(figure, heading, f"{heading}. {' '.join(words)}", used)}

    def _chain(self, axes: Axes, frame: pd.DataFrame, chain: Sequence[str]) -> None:
        tones = sns.color_palette("viridis", len(chain) + 1)[: len(chain)]
        for term, tone in zip(chain, tones, strict=True):
            values = frame[term].dropna() if term in frame else pd.Series(dtype=float)
            if len(values):
                drawn = thin(values, self.points)
                axes.plot(drawn.index.to_numpy(), drawn.to_numpy(), color=tone, linewidth=0.9, label=NAMES[term])

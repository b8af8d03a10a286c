"""The paper's inequalities along a run, step by step: where the looseness sits and when a bound says nothing.

The links are those of `analysis.chains`. They are computed from the logits of a run where it recorded them: both sides
of a link then come from the same float64 numbers, and a link that fails by more than `chains.RELATIVE` is an error.
The examples stream alone keeps float32 columns, each rounded for itself, so a link between two of them is only as
exact as they are: what that rounding can move (`chains.storage_error`) is added to the tolerance, and nothing else.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.chains import (
    CONFIDENCE,
    CONFIDENCE_TERMS,
    ROBUST,
    Samples,
    ece_chain,
    lambda_chain,
    output_bias_bounds,
    pairs,
    storage_error,
    violations,
)
from analysis.plugins import SettingError
from analysis.predictions import Floats
from analysis.run import Run

FLOAT32 = 2.0**-24
"""Relative rounding of a stored float32."""
SINGLE_PRECISION = 1e-5
"""Relative error allowed in lambda_max, lambda_last_layer and |J_i|, which the network's float32 arithmetic made."""


class ViolationError(ValueError):
    """A link that must hold does not; the sentence names run, step and link."""


def waterfall(run: Run, split: str = "train", bins: int = 15) -> pd.DataFrame:
    """Both chains of a run, every link checked.

    Args:
        run: has the stream logits_<split>, or examples_<split>. The sharpness chain needs the scalar lambda_max and
            the stream ``jacobian``, which are of the training split.
        split: whose samples.
        bins: of the ECE.

    Returns:
        One row per step, float64; columns are the terms of `ece_chain` and, with NaN where it was not measured,
        `lambda_chain` and the lower bounds on lambda_max; bound_ece_<radius> (K-1) times the moment of PGD margins,
        a lower estimate of (K-1) Q_eps; and

        * ``ece_vacuous``: bound_ece >= 1, so the paper's bound says nothing.
        * ``lambda_vacuous``: bound_lambda >= C_J^2/2, which needs no margin; NaN where not measured.
        * ``interpolating``: gamma > 0.

        ``attrs`` has run, split and source ("logits" or "examples", the stream).

    Raises:
        SettingError: the run lacks both streams.
        ViolationError: a link fails beyond what rounding can do.
    """
    source = next((name for name in ("logits", "examples") if f"{name}_{split}" in run.streams), None)
    if source is None:
        raise SettingError(
            f"waterfall, split {split!r}: run {run.id} has no stream logits_{split} or examples_{split}; its streams "
            f"are {', '.join(run.streams) or 'empty'} (the settings probes.logits and probes.examples record them)"
        )
    curvature = _Curvature(run) if split == "train" else None
    parts = []
    for steps, samples, logits in _samples(run, split, source):
        terms, errors = ece_chain(samples, bins), storage_error(samples)
        terms |= _robust_terms(run, split, steps, samples.classes)
        if curvature is not None:
            more, allowed = curvature.terms(steps, samples, logits)
            terms, errors = terms | more, errors | allowed
        _raise_on_violation(run, steps, terms, errors)
        parts.append(pd.DataFrame(terms, index=pd.Index(steps, name="step")))
    frame = pd.concat(parts)
    frame["ece_vacuous"] = frame["bound_ece"] >= 1
    if "bound_lambda" in frame:
        vacuous = (frame["bound_lambda"] >= frame["trivial_lambda"]).astype(float)
        frame["lambda_vacuous"] = vacuous.where(frame["bound_lambda"].notna())
    frame["interpolating"] = frame["gamma"] > 0
    frame.attrs = {"run": run.id, "split": split, "source": source}
    return frame


def slack(frame: pd.DataFrame) -> pd.DataFrame:
    """upper / lower of every link of a waterfall, one column per link "lower <= upper".

    At least 1 but for rounding; inf where lower is 0; NaN where the link does not apply, or where a side is made from
    confidences and below 1000 `chains.CONFIDENCE`, so that less than three of its digits are true.
    """
    seen = frame.copy()
    for name in CONFIDENCE_TERMS:
        seen[name] = seen[name].where(seen[name] >= 1000 * CONFIDENCE)
    with np.errstate(divide="ignore", invalid="ignore"):
        return pd.DataFrame({f"{low} <= {high}": seen[high] / seen[low] for low, high in pairs(frame.columns)})


def interpolation_step(frame: pd.DataFrame) -> int | None:
    """The first step from which a waterfall's run stays interpolating, or None where its last row is not."""
    inside = frame["interpolating"].to_numpy(bool)
    if not len(inside) or not inside[-1]:
        return None
    outside = np.flatnonzero(~inside)
    return int(frame.index[outside[-1] + 1 if len(outside) else 0])


def summarize(runs: Iterable[Run], split: str = "train", bins: int = 15) -> pd.DataFrame:
    """One row per run: settings, share of steps vacuous, step of interpolation, median slack of each link.

    Raises:
        ViolationError: as `waterfall`.
    """
    rows = []
    for run in runs:
        frame = waterfall(run, split, bins)
        row = {
            "run": run.id,
            "optimizer": run.setting("optimizer.name"),
            "lr": run.setting("optimizer.lr"),
            "seed": run.setting("seed"),
            "steps": len(frame),
            "ece_vacuous": frame["ece_vacuous"].mean(),
            "lambda_vacuous": frame["lambda_vacuous"].mean() if "lambda_vacuous" in frame else np.nan,
            "interpolating_from": interpolation_step(frame),
        }
        rows.append(row | slack(frame).median().to_dict())
    return pd.DataFrame(rows)


def _samples(run: Run, split: str, source: str) -> Iterator[tuple[NDArray[np.int64], Samples, Floats | None]]:
    """Steps, samples and, where recorded, float64 logits, some rows at a time."""
    if source == "logits":
        labels = run.labels(split)
        for steps, columns in run.chunks(f"logits_{split}", ("logits",)):
            logits = columns["logits"].astype(np.float64)
            yield steps, Samples.of_logits(logits, labels), logits
        return
    names = ("margin", "predicted_margin", "correct", "log_one_minus_confidence", "log_one_minus_p_true")
    classes = int(run.meta["data"]["classes"])
    for steps, columns in run.chunks(f"examples_{split}", names):
        real = {name: columns[name].astype(np.float64) for name in names if name != "correct"}
        yield (
            steps,
            Samples(correct=columns["correct"].astype(bool), classes=classes, rounding=FLOAT32, **real),
            None,
        )


class _Curvature:
    """Sharpness and Jacobians of a run, by step."""

    def __init__(self, run: Run) -> None:
        scalars = run.frame()
        self.scalars = scalars.set_index("step") if "lambda_max" in scalars else pd.DataFrame()
        self.cross_entropy = run.setting("loss.name") != "mse"
        self.run = run
        self.steps = run.steps("jacobian") if "jacobian" in run.streams else np.zeros(0, np.int64)

    def terms(
        self, steps: NDArray[np.int64], samples: Samples, logits: Floats | None
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Terms at these steps and what they may be off by; NaN where not measured."""
        if not len(self.scalars.columns):
            return {}, {}
        at = self.scalars.reindex(steps)
        lambda_max = at["lambda_max"].to_numpy(np.float64)
        terms: dict[str, Floats] = {"lambda_max": lambda_max}
        # A Ritz value is at most lambda_max, and within its residual of an eigenvalue.
        residual = at["lambda_max_residual"].fillna(0).to_numpy(np.float64) if "lambda_max_residual" in at else 0.0
        errors: dict[str, Floats] = {}
        for name in ("lambda_output_bias", "lambda_last_layer"):
            if name in at:
                terms[name] = at[name].to_numpy(np.float64)
                errors[name] = SINGLE_PRECISION * np.abs(lambda_max) + residual
        if logits is not None and "lambda_output_bias" in terms:
            terms |= output_bias_bounds(logits)
        return self._chain(steps, samples, terms, errors)

    def _chain(
        self,
        steps: NDArray[np.int64],
        samples: Samples,
        terms: dict[str, Floats],
        errors: dict[str, Floats],
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        there = np.isin(steps, self.steps)
        if not there.any():
            return terms, errors
        norm = _at(self.run.rows("jacobian", "norm", steps[there]), there)
        hessian = _at(self.run.rows("jacobian", "output_hessian", steps[there]), there)
        chain = lambda_chain(samples, terms["lambda_max"], norm, hessian)
        errors = storage_error(samples, norm) | errors
        errors["jacobian_hessian"] = SINGLE_PRECISION * chain["jacobian_hessian"]
        if not self.cross_entropy:
            # With MSE on logits H_z is constant: no margin bounds lambda_max.
            chain = {name: chain[name] for name in ("lambda_max", "jacobian_hessian", "norm_hessian")}
        return terms | chain, errors


def _at(rows: NDArray[np.floating], there: NDArray[np.bool_]) -> Floats:
    """Rows at the steps where they are, NaN elsewhere."""
    whole = np.full((len(there), rows.shape[1]), np.nan)
    whole[there] = rows
    return whole


def _robust_terms(run: Run, split: str, steps: NDArray[np.int64], classes: int) -> dict[str, Floats]:
    stream = f"robust_{split}"
    if stream not in run.streams:
        return {}
    there = np.isin(steps, run.steps(stream))
    terms = {}
    for name in run.columns(stream):
        if name.startswith("margin_"):
            rows = _at(run.rows(stream, name, steps[there]), there)
            with np.errstate(over="ignore"):
                terms[ROBUST + name.removeprefix("margin_").removesuffix("_upper")] = (classes - 1) * np.exp(
                    -rows
                ).mean(axis=-1)
    return terms


def _raise_on_violation(
    run: Run, steps: NDArray[np.int64], terms: dict[str, Floats], errors: dict[str, Floats]
) -> None:
    broken = violations(terms, errors)
    if len(broken):
        first = broken.iloc[0]
        raise ViolationError(
            f"run {run.id}, step {steps[first['at']]}: {first['link']} is violated by {first['excess']:.3g} relative "
            f"({first['lower']:.17g} against {first['upper']:.17g}); {len(broken)} violations in these steps"
        )

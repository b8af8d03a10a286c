"""The paper's tables, and ours in the same shape."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from analysis.coupling import ALPHA, couple
from analysis.plugins import SettingError
from analysis.run import Run
from figures.records import by_rate, method, optimizer, series

TABLES = Path(__file__).parents[1] / "data" / "paper"
Name = Literal["table1", "table2", "tableA1", "tableA2"]

RATES, SEEDS = 4, 3
"""How many step sizes and seeds the paper's means are over."""

NOTES = {
    "table1": "Pearson's r along a run is descriptive: two curves that rise and decay correlate whatever drives them. "
    "The column coupling holds the verdict of the test that is valid for trajectories, before Holm's adjustment.",
    "table2": "The paper gives the accuracy of SAM with CalMO as 85.2 here and as 85.8 in Table A2; its standard "
    "deviations here are sqrt(3/2) times those of Table A1 (over 3 seeds with ddof 1 against ddof 0).",
    "tableA1": "The paper's standard deviations here are those of Table 2 over sqrt(3/2): ddof 0 over 3 seeds.",
    "tableA2": "The paper gives the accuracy of SAM with CalMO as 85.8 here and as 85.2 in Table 2.",
}
"""What a reader of a table should know, slips of the paper among it."""


def published(name: Name) -> pd.DataFrame:
    """The numbers of a table of the paper, as columns key..., value, std in the form of `compare`.

    Raises:
        SettingError: the file of published numbers is not there.
    """
    path = TABLES / f"{name}.csv"
    if not path.is_file():
        raise SettingError(f"{path}: the paper's numbers are not there; they come with a checkout of the repository")
    table = pd.read_csv(path)
    if name == "table1":
        renamed = {"pearson_mean": "paper", "pearson_std": "paper_std"}
        return table.rename(columns=renamed).assign(quantity=lambda t: "r of " + t["metric"] + ", " + t["split"])
    keys = ["optimizer", "method"]
    table = table.rename(columns={"loss": "method"})
    values = [c for c in map(str, table) if f"{c}_std" in table.columns]
    parts = [
        table[keys].assign(quantity=value, paper=table[value], paper_std=table[f"{value}_std"]) for value in values
    ]
    return pd.concat(parts, ignore_index=True)


def compare(name: Name, runs: Sequence[Run]) -> pd.DataFrame:
    """A table of the paper with our numbers beside it.

    A verdict is "differs" where Welch's t test of the two means (over step sizes in Table 1, over seeds in the others)
    has p <= .05, "compatible" where it has not, which a wide spread of ours makes likely, "too few" where ours has
    less than two values, and "not run" without ours. Ours may be of another data set and scale than the paper's, so
    "differs" refutes nothing by itself.

    Returns:
        Columns optimizer, method (not in Table 1), quantity, ours, ours_std, values (how many means or runs ours is
        over), paper, paper_std, difference, verdict and, for Table 1, coupling.
    """
    table = published(name)
    measure: Callable[[Any, Sequence[Run]], tuple[float, float, int]] = _correlation if name == "table1" else _at_best
    ours = [measure(row, runs) for row in table.itertuples()]
    table[["ours", "ours_std", "values"]] = pd.DataFrame(ours, index=table.index, dtype=float)
    # Table A1 has standard deviations with ddof 0.
    corrected = table["paper_std"] * (np.sqrt(3 / 2) if name == "tableA1" else 1)
    count = RATES if name == "table1" else SEEDS
    table["difference"] = table["ours"] - table["paper"]
    table["verdict"] = [_verdict(row, std, count) for row, std in zip(table.itertuples(), corrected, strict=True)]
    keys = ["optimizer"] if name == "table1" else ["optimizer", "method"]
    shown = table[[*keys, "quantity", "ours", "ours_std", "values", "paper", "paper_std", "difference", "verdict"]]
    if name == "table1":
        shown = shown.assign(coupling=[_coupling(row, runs) for row in table.itertuples()])
    return shown.astype({"values": int})


def _verdict(row: Any, paper_std: float, count: int) -> str:
    if row.values == 0:
        return "not run"
    if row.values < 2:
        return "too few"
    if row.ours_std == paper_std == 0:
        return "compatible" if row.difference == 0 else "differs"
    ours = row.ours, row.ours_std, row.values
    test = stats.ttest_ind_from_stats(*ours, row.paper, paper_std, count, equal_var=False)
    return "differs" if test.pvalue <= ALPHA else "compatible"


def _correlation(row: Any, runs: Sequence[Run]) -> tuple[float, float, int]:
    """Mean and std over step sizes of r, each averaged over its seeds first; Table 1."""
    members = [run for run in runs if optimizer(run) == row.optimizer and method(run) == "CE"]
    means = []
    for some in by_rate(members).values():
        values = [_pearson(series(run, row.metric, row.split), series(run, "lambda_max")) for run in some]
        if any(np.isfinite(values)):
            means.append(float(np.nanmean(values)))
    return *_mean_and_std(means), len(means)


def _coupling(row: Any, runs: Sequence[Run]) -> str:
    members = [run for run in runs if optimizer(run) == row.optimizer and method(run) == "CE"]
    if not any(len(series(run, "lambda_max")) for run in members):
        return ""
    return str(couple(members, row.metric, "lambda_max", row.split).verdict)


def _pearson(x: "pd.Series[float]", y: "pd.Series[float]") -> float:
    both = pd.concat([x, y], axis=1, join="inner").to_numpy()
    if len(both) < 3 or not (np.ptp(both, axis=0) > 0).all():
        return float("nan")
    return float(np.corrcoef(both.T)[0, 1])


METHODS = {"ce": "CE", "calmo": "CalMO", "flat": "Flat", "rob": "Rob", "label_smoothing": "label smoothing",
           "focal": "focal loss"}  # fmt: skip


def _at_best(row: Any, runs: Sequence[Run]) -> tuple[float, float, int]:
    """Mean and std over runs of a value at the step of least validation loss; Tables 2, A1 and A2."""
    members = [run for run in runs if optimizer(run) == row.optimizer and method(run) == METHODS[row.method]]
    split, _, metric = row.quantity.partition("_")
    values = []
    for run in members:
        loss = series(run, "loss", "validation")
        curve = series(run, "accuracy" if metric.startswith("accuracy") else metric, split)
        if not len(curve):
            continue
        measured = loss.loc[loss.index.isin(curve.index)]
        value = curve.loc[measured.index.to_numpy()[measured.argmin()]] if len(measured) else curve.iloc[-1]
        values.append(float(value) * (100 if metric.endswith("pct") else 1))
    return *_mean_and_std(values), len(values)


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")

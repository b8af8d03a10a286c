"""The paper's tables, and ours in the same shape."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from analysis.after import After
from analysis.coupling import ALPHA, couple
from analysis.methods import compare_methods, method
from analysis.plugins import SettingError
from analysis.run import Run
from analysis.selection import ENDED_BADLY, Rule, Selection, read, rule_of
from figures.records import by_rate, optimizer, series

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
    less than two values, "not run" without ours, and "ours only" without the paper's. Ours may be of another data set
    and scale than the paper's, so "differs" refutes nothing by itself.

    Tables 2 and A2 end with the calibrators and ensembles that the experiment asked for (see `analysis.after`).

    Returns:
        Columns optimizer, method (not in Table 1), quantity, ours, ours_std, values (how many means or runs ours is
        over), paper, paper_std, difference and verdict. Table 1 also has coupling. The others have selection: the
        rule by which ours was read, "best" for the step of least validation loss; and last, last_std: ours at the
        last step.
    """
    table = published(name)
    if name == "table1":
        ours = [_correlation(row, runs) for row in table.itertuples()]
        table[["ours", "ours_std", "values"]] = pd.DataFrame(ours, index=table.index, dtype=float)
        table["coupling"] = [_coupling(row, runs) for row in table.itertuples()]
    else:
        read_rows = pd.DataFrame([_read(row, finished(runs)) for row in table.itertuples()], index=table.index)
        table = pd.concat([pd.concat([table, read_rows], axis=1), _further(name, runs)[0]], ignore_index=True)
    # Table A1 has standard deviations with ddof 0.
    corrected = table["paper_std"] * (np.sqrt(3 / 2) if name == "tableA1" else 1)
    count = RATES if name == "table1" else SEEDS
    table["difference"] = table["ours"] - table["paper"]
    table["verdict"] = [_verdict(row, std, count) for row, std in zip(table.itertuples(), corrected, strict=True)]
    keys = ["optimizer"] if name == "table1" else ["optimizer", "method"]
    both = [] if name == "table1" else ["selection", "last", "last_std"]
    more = ["coupling"] if name == "table1" else []
    numbers = ["quantity", "ours", "ours_std", "values", *both, "paper", "paper_std", "difference", "verdict"]
    return table[[*keys, *numbers, *more]].astype({"values": int})


def notes(name: Name, runs: Sequence[Run]) -> tuple[str, ...]:
    """What a reader of the comparison should know: slips of the paper, how ours was read, and what it lacks."""
    found = [NOTES[name]]
    if name == "table1":
        return tuple(found)
    rows = [_read(row, finished(runs)) for row in published(name).itertuples()]
    rules = {row["selection"] for row in rows if row["selection"]}
    if rules == {"best"}:
        found.append("Ours is at each run's step of least validation loss (cross-entropy), and at its last.")
    elif rules:
        what = "No validation loss" if rules == {"last"} else "Not everywhere a validation loss"
        found.append(f"{what} was recorded: where selection says last, ours is at the last step, not at the best one.")
    if len(finished(runs)) < len(runs):
        found.append(f"{len(runs) - len(finished(runs))} failed or diverged runs are left out.")
    return (*found, *_further(name, runs)[1])


def finished(runs: Sequence[Run]) -> list[Run]:
    """Runs that did not fail or diverge."""
    return [run for run in runs if run.status not in ENDED_BADLY]


def _verdict(row: Any, paper_std: float, count: int) -> str:
    if row.values == 0:
        return "not run"
    if np.isnan(row.paper):
        return "ours only"
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


def _read(row: Any, runs: Sequence[Run]) -> dict[str, Any]:
    """Ours at the selected step and at the last one, over the runs of a row; Tables 2, A1 and A2."""
    members = [run for run in runs if optimizer(run) == row.optimizer and method(run) == METHODS[row.method]]
    split, _, metric = row.quantity.partition("_")
    factor = 100 if metric.endswith("pct") else 1
    metric = metric.removesuffix("_pct")
    values: dict[Rule, list[float]] = {"best": [], "last": []}
    selections: list[Selection] = []
    for run in members:
        if len(series(run, metric, split)):
            for rule, found in values.items():
                value, selection = read(run, metric, split, rule)
                found.append(factor * value)
                if rule == "best":
                    selections.append(selection)
    ours, ours_std = _mean_and_std(values["best"])
    last, last_std = _mean_and_std(values["last"])
    return {
        "ours": ours,
        "ours_std": ours_std,
        "values": len(selections),
        "selection": rule_of(selections),
        "last": last,
        "last_std": last_std,
    }


FURTHER: tuple[Name, ...] = ("table2", "tableA2")
"""Tables that show calibrators and ensembles too."""


def _further(name: Name, runs: Sequence[Run]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Rows of calibrators and ensembles in the form of `compare`, and what could not be done."""
    after = After.of(runs)
    if not after or name not in FURTHER:
        return pd.DataFrame(), ()
    needed = ["logits_test", *(["logits_validation"] if after.calibrators else [])]
    usable = tuple(run for run in finished(runs) if all(stream in run.streams for stream in needed))
    if not usable:
        lacking = f"The experiment asks for calibrators or ensembles, but no run has {' and '.join(needed)}."
        return pd.DataFrame(), (lacking,)
    try:
        frame, said = _methods(usable, after.model_dump_json())
    except SettingError as error:
        return pd.DataFrame(), (f"Calibrators and ensembles are missing: {error}.",)
    table = published(name)
    methods = [METHODS[key] for key in table["method"].unique()]
    several = frame.groupby("optimizer")["lr"].nunique() > 1
    rows: list[dict[str, Any]] = []
    # In the order of the table.
    for optimizer_name, base in product(table["optimizer"].unique(), methods):
        for row in frame[frame["optimizer"] == optimizer_name].to_dict("records"):
            if row["method"].startswith((f"{base} + ", f"{base} ensemble of ")):
                rate = f"lr = {row['lr']:g}" if several[optimizer_name] else ""
                label = ", ".join(filter(None, [row["method"], rate, row["setting"]]))
                rows += _rows_of(row, label)
    if rows:
        said = ("Calibrators and ensembles are read among the steps with recorded logits.", *said)
    return pd.DataFrame(rows), said


def _rows_of(row: Mapping[Any, Any], label: str) -> list[dict[str, Any]]:
    """A row of `compare_methods` in the form of `compare`."""
    empty = dict.fromkeys(("last", "last_std", "paper", "paper_std"), float("nan"))
    shared = {"optimizer": row["optimizer"], "method": label, "values": row["values"], "selection": row["selection"]}
    return [
        {**shared, "quantity": quantity, "ours": factor * row[name], "ours_std": factor * row[f"{name}_std"], **empty}
        for quantity, name, factor in (("test_accuracy_pct", "accuracy", 100), ("test_ece", "ece", 1))
    ]


@lru_cache(maxsize=4)
def _methods(runs: tuple[Run, ...], after: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    # Tables of one report share it: a calibrator such as SMART takes seconds to fit to each run.
    wanted = After.model_validate_json(after)
    table = compare_methods(runs, wanted.calibrators, wanted.ensemble)
    return table.to_frame(), table.notes


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")

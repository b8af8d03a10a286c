"""One row per run: the numbers people ask for first."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis.plugins import SettingError
from analysis.run import Run

EDGES = ("gd", "sgd", "sam", "bulk_sgd")
"""Optimizers whose plain step theta - eta g has its edge of stability at lambda_max = 2/eta."""


def edge(run: Run) -> float:
    """2/eta, the sharpness at which a gradient step of size eta stops being stable; NaN for other optimizers."""
    optimizer = run.spec.get("optimizer", {})
    return 2 / optimizer["lr"] if optimizer.get("name") in EDGES and "lr" in optimizer else float("nan")


def run_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Peaks of training ECE (15 bins) and sharpness with their steps, the edge, accuracies and Pearson's r.

    Peaks skip what is not finite. Pearson's r of training ECE with sharpness, over the steps where both were
    recorded, is descriptive: two curves that rise and fall correlate whatever drives them. What was not recorded is
    NaN.

    Returns:
        Columns run, optimizer, lr, seed, status, peak_ece, peak_ece_step, peak_sharpness, peak_sharpness_step, edge,
        accuracy_train, accuracy_test, pearson_r.
    """
    return pd.DataFrame([_row(run) for run in runs])


def audit_errors(run: Run) -> "pd.Series[float]":
    """lambda_max / lambda_max_audit - 1 at the steps that the probe sharpness_audit searched anew; empty without it."""
    tracked, audited = _series(run, "lambda_max"), _series(run, "lambda_max_audit")
    return (tracked / audited.where(audited > 0) - 1).dropna()


def _row(run: Run) -> dict[str, Any]:
    optimizer = run.spec.get("optimizer", {})
    error, sharpness = _series(run, "ece"), _series(run, "lambda_max")
    both = pd.concat([error, sharpness], axis=1, join="inner")
    row: dict[str, Any] = {
        "run": run.id,
        "optimizer": optimizer.get("name", ""),
        "lr": optimizer.get("lr", float("nan")),
        "seed": run.spec.get("seed"),
        "status": run.status,
    }
    for name, series in {"ece": error, "sharpness": sharpness}.items():
        row[f"peak_{name}"] = series.max() if len(series) else float("nan")
        row[f"peak_{name}_step"] = series.idxmax() if len(series) else float("nan")
    row["edge"] = edge(run)
    for split in ("train", "test"):
        accuracy = _series(run, f"accuracy_{split}")
        row[f"accuracy_{split}"] = accuracy.iloc[-1] if len(accuracy) else float("nan")
    row["pearson_r"] = _pearson(both.iloc[:, 0].to_numpy(), both.iloc[:, 1].to_numpy())
    return row


def _series(run: Run, name: str) -> "pd.Series[float]":
    try:
        series: pd.Series[float] = run.metric(name)
    except SettingError:
        return pd.Series(dtype=float, name=name)
    return series.loc[np.isfinite(series)]


def _pearson(x: "np.ndarray[Any, Any]", y: "np.ndarray[Any, Any]") -> float:
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])

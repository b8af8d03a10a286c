"""Cases that other libraries got wrong, each with its citation in tests/calibration_vectors.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis import calibration, margins
from analysis.recalibration import fit
from analysis.recalibration.histogram import HistogramBinning
from analysis.recalibration.isotonic import Isotonic
from analysis.recalibration.platt import Platt
from runners.losses.focal import Focal
from runners.losses.label_smoothing import LabelSmoothing

ROWS = json.loads((Path(__file__).parent.parent / "calibration_vectors.json").read_text(encoding="utf-8"))
Row = dict[str, Any]


def arrays(row: Row, dtype: str) -> tuple[np.ndarray, np.ndarray, bool]:
    values = np.array(row.get("logits", row.get("probs")), dtype=row["params"].get("dtype", dtype))
    return values, np.array(row["labels"]), "logits" in row


def scores(row: Row, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    values, labels, from_logits = arrays(row, dtype)
    read = calibration.positive_class if row["params"].get("mode") == "positive_class" else calibration.top_label
    return read(values, labels, from_logits=from_logits)


def ece(row: Row, dtype: str) -> Any:
    p = row["params"]
    labels = np.array(row["labels"])
    found = [
        calibration.ece(
            *scores(row | {"labels": labels.astype(kind)}, dtype),
            bins=p["n_bins"],
            norm=p["norm"],
            closed=p["closed"],
            debias=p.get("debias", False),
        )
        for kind in p.get("label_dtypes", ["int64"])
    ]
    assert len(set(found)) == 1
    assert np.asarray(found[0]).dtype.kind == "f"
    return found[0]


def adaptive_ece(row: Row, dtype: str) -> Any:
    ties = row["params"].get("ties", "together")
    return calibration.ece(*scores(row, dtype), bins=row["params"]["n_bins"], binning="mass", ties=ties)


def classwise_ece(row: Row, dtype: str) -> Any:
    values, labels, from_logits = arrays(row, dtype)
    p = row["params"]
    return calibration.classwise_ece(values, labels, from_logits=from_logits, bins=p["n_bins"], closed=p["closed"])


def nll(row: Row, dtype: str) -> Any:
    values, labels, _ = arrays(row, dtype)
    return calibration.nll(values, labels, from_logits=True)


def brier(row: Row, dtype: str) -> Any:
    values, labels, _ = arrays(row, dtype)
    return calibration.brier(values, labels, from_logits=False, scale=row["params"]["scale"])


def mmce(row: Row, dtype: str) -> Any:
    assert row["params"]["biased"]
    return calibration.kce(*scores(row, dtype), width=row["params"]["width"], squared=row["params"]["squared"])


def kernel_ce_scores(row: Row, dtype: str) -> Any:
    p = row["params"]
    return calibration.kce(np.array(p["scores"], dtype), row["labels"], width=p["width"], squared=p["squared"])


def skce(row: Row, dtype: str) -> Any:
    values, labels, _ = arrays(row, dtype)
    p = row["params"]
    return calibration.skce(values, labels, from_logits=False, nu=p["nu"], estimator=p["estimator"])


def temperature_nll_after(row: Row, dtype: str) -> Any:
    values, labels, _ = arrays(row, dtype)
    return calibration.nll(fit("temperature", values, labels)(values), labels, from_logits=False)


def score_map(method: Any) -> Callable[[Row, str], Any]:
    def compute(row: Row, dtype: str) -> Any:
        p = row["params"]
        settings = {"bins": p["n_bins"]} if "n_bins" in p else {}
        settings |= {"target_smoothing": p["target_smoothing"]} if "target_smoothing" in p else {}
        fitted = method(**settings)
        given = np.array(p["scores"], dtype=dtype)
        parameters = fitted.fit_scores(given, np.array(row["labels"], dtype=np.float64))
        return fitted.apply_scores(parameters, np.array(p["query"], dtype=dtype))

    return compute


def soft_ece(row: Row, dtype: str) -> Any:
    p = row["params"]
    return calibration.soft_ece(*scores(row, dtype), bins=p["n_bins"], sigma=p["sigma"], delta=p.get("delta", 0.0))


def logit_loss(build: Callable[[Row], Any]) -> Callable[[Row, str], Any]:
    def compute(row: Row, dtype: str) -> Any:
        values, labels, _ = arrays(row, dtype)
        logits = torch.tensor(values, requires_grad=True)
        loss = build(row["params"]).of_logits(logits, torch.tensor(labels))
        return torch.autograd.grad(loss, logits)[0].numpy() if row["metric"].endswith("grad") else loss.item()

    return compute


METRICS: dict[str, Callable[[Row, str], Any]] = {
    "ece": ece,
    "adaptive_ece": adaptive_ece,
    "classwise_ece": classwise_ece,
    "nll": nll,
    "brier": brier,
    "mmce": mmce,
    "mmce_weighted": lambda row, dtype: calibration.weighted_kce(*scores(row, dtype), width=row["params"]["width"]),
    "kernel_ce_scores": kernel_ce_scores,
    "skce": skce,
    "smooth_ece": lambda row, dtype: calibration.smooth_ece(*scores(row, dtype)),
    "temperature": lambda row, dtype: calibration.fit_temperature(*arrays(row, dtype)[:2]),
    "temperature_nll_after": temperature_nll_after,
    "isotonic_fit": score_map(Isotonic),
    "platt_fit": score_map(Platt),
    "histogram_binning_fit": score_map(HistogramBinning),
    "label_smoothing_ce": logit_loss(lambda p: LabelSmoothing(eps=p["eps"])),
    "focal_loss": logit_loss(lambda p: Focal(gamma=p["gamma"])),
    "focal_loss_grad": logit_loss(lambda p: Focal(gamma=p["gamma"])),
    "aurc": lambda row, dtype: calibration.aurc(*scores(row, dtype), rule=row["params"]["rule"]),
    "soft_ece": soft_ece,
    "charbonnier_soft_ece": soft_ece,
    "logit_gap": lambda row, dtype: margins.predicted_margin(arrays(row, dtype)[0]),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_case_that_a_library_got_wrong(row: Row, dtype: str):
    found = METRICS[row["metric"]](row, dtype)
    if row["expected"] == "finite":
        assert np.isfinite(found)
        return
    # Inputs rounded to float32 have another true value, by a few units of its precision.
    rounding = 0.0 if dtype == "float64" else 1e-6 * max(1.0, float(np.max(np.abs(row["expected"]))))
    np.testing.assert_allclose(found, row["expected"], rtol=0, atol=max(row["tol"], rounding))


def test_every_row_has_a_citation():
    assert len(ROWS) >= 60
    assert all(row["citation"] and row["why"] for row in ROWS)

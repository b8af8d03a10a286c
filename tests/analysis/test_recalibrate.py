"""The table of before and after: its numbers, its intervals, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from analysis import calibration as cal
from analysis.plugins import SettingError
from analysis.recalibrate import METRICS, RecalibrationTable, recalibrate, recalibrate_run
from analysis.recalibration import fit
from analysis.record import Run, Writer
from tests.analysis.calibration_cases import random_logits
from tests.analysis.record_samples import header

LOGITS, LABELS = random_logits(700, scale=3.0)
FIT, REPORT = (LOGITS[:300], LABELS[:300]), (LOGITS[300:], LABELS[300:])


def table(**options: object) -> RecalibrationTable:
    settings = {"methods": ("temperature", "isotonic"), "resamples": 200} | options
    return recalibrate(*FIT, *REPORT, **settings)


def test_before_and_after_are_the_metrics_of_the_reported_split():
    frame = table(metrics=tuple(METRICS)).to_frame().set_index(["method", "metric"])
    for method in ("temperature", "isotonic"):
        p = fit(method, *FIT)(REPORT[0])
        scores = cal.top_label(p, REPORT[1], from_logits=False)
        expected = {
            "ece": cal.ece(*scores),
            "mce": cal.mce(*scores),
            "kce": cal.kce(*scores),
            "smooth_ece": cal.smooth_ece(*scores),
            "aurc": cal.aurc(*scores),
            "confidence_gap": cal.confidence_gap(*scores),
            "accuracy": scores[1].mean(),
            "brier": cal.brier(p, REPORT[1], from_logits=False),
            "nll": cal.nll(p, REPORT[1], from_logits=False),
        }
        assert set(expected) == set(METRICS)
        for name, value in expected.items():
            assert frame.loc[(method, name), "after"] == pytest.approx(value, abs=1e-12)
        assert frame.loc[(method, "nll"), "before"] == pytest.approx(cal.nll(*REPORT))
    assert frame.loc[("temperature", "accuracy"), "difference"] == 0
    assert frame.xs("temperature")["preserves_argmax"].all()
    assert not frame.xs("isotonic")["preserves_argmax"].any()


def test_intervals_hold_the_estimate_and_stay_in_range():
    frame = table().to_frame()
    for side in ("before", "after", "difference"):
        assert (frame[f"{side}_low"] <= frame[f"{side}_high"]).all()
    ece = frame[frame["metric"] == "ece"]
    assert (ece[["before_low", "after_low"]] >= 0).all(axis=None)
    # Far from calibrated, then nearly so: the change is beyond its error.
    assert (ece["difference_high"] < 0).all()


def test_the_difference_is_paired():
    frame = table(methods=["temperature"], metrics=["accuracy"]).to_frame().iloc[0]
    assert frame["difference_low"] == frame["difference_high"] == 0
    assert frame["before_low"] < frame["before_high"]


def test_an_infinite_loss_is_reported_as_such():
    frame = table(methods=["isotonic"], metrics=["nll"]).to_frame().iloc[0]
    assert frame["after"] == frame["after_high"] == np.inf
    assert np.isfinite(frame["before_high"])


def test_methods_with_settings_are_told_apart():
    found = table(methods=["histogram", {"name": "histogram", "bins": 5}], metrics=["ece"])
    assert found.to_frame()["method"].tolist() == ["histogram", "histogram bins=5"]
    assert found.calibrators[0, "histogram bins=5"].parameters["rate"].shape == (5, 5)


def test_a_trajectory_is_fitted_step_by_step():
    inner, outer = (np.stack([z, 2 * z, 3 * z]) for z in (FIT[0], REPORT[0]))
    found = recalibrate(inner, FIT[1], outer, REPORT[1], ["temperature"], ["ece"], steps=[0, 10, 20], resamples=0)
    assert found.to_frame()["step"].tolist() == [0, 10, 20]
    temperatures = [float(found.calibrators[step, "temperature"].parameters["temperature"]) for step in (0, 10, 20)]
    np.testing.assert_allclose(temperatures, temperatures[0] * np.array([1, 2, 3]), rtol=1e-9)
    assert found.to_frame()["after_low"].isna().all()
    assert found.to_frame()["after"].std() < 1e-9


def test_the_summary_says_what_was_fitted_and_reported_where():
    text = table().summary()
    assert text.startswith("fitted on 300 samples of validation, reported on 400 of test; 95% bootstrap intervals")
    assert "temperature" in text


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((*FIT, *FIT), {}, "all 300 fit logits of 'validation' are among"),
        ((*FIT, LOGITS, LABELS), {}, "samples that the fit has not seen"),
        ((*FIT, LOGITS[::-1], LABELS[::-1]), {}, "samples that the fit has not seen"),
        ((*FIT, *REPORT), {"fit_split": "test"}, "fit_split = report_split = 'test'"),
        ((*FIT, *REPORT), {"metrics": ["ecce"]}, "metric = 'ecce'; accepted: 'accuracy'"),
        ((*FIT, *REPORT), {"methods": ["temp"]}, "no such entry in recalibration"),
        ((FIT[0][None], FIT[1], REPORT[0][None], REPORT[1]), {"steps": [1, 2]}, "for 2 steps"),
        ((FIT[0][None], FIT[1], *REPORT), {}, r"expected both \[n, K\] or both \[steps, n, K\]"),
    ],
)
def test_what_would_mislead_is_refused(arrays, options, message):
    with pytest.raises(SettingError, match=message):
        recalibrate(*arrays, **options)


def record(path: Path, validation: list[int], test: list[int]) -> Run:
    splits = {"validation": (*FIT, validation), "test": (*REPORT, test)}
    with Writer.create(path, header()) as writer:
        for split, (logits, labels, steps) in splits.items():
            writer.static(f"labels_{split}", labels=labels)
            for step in steps:
                writer.append(f"logits_{split}", step, logits=(logits * (1 + step)).astype(np.float32))
    return Run.open(path)


def test_a_run_is_recalibrated_at_its_last_common_step_or_at_all(tmp_path):
    run = record(tmp_path / "run", validation=[0, 1, 2, 3], test=[1, 3, 4])
    last = recalibrate_run(run, ["temperature"], ["ece"], resamples=0).to_frame()
    every = recalibrate_run(run, ["temperature"], ["ece"], every_step=True, resamples=0).to_frame()
    assert last["step"].tolist() == [3]
    assert every["step"].tolist() == [1, 3]
    expected = cal.ece(*cal.top_label((4 * REPORT[0]).astype(np.float32), REPORT[1], from_logits=True))
    assert last["before"].item() == pytest.approx(expected)


def test_a_run_without_what_it_takes_says_so(tmp_path):
    run = record(tmp_path / "run", validation=[0], test=[1])
    with pytest.raises(SettingError, match="no step in common"):
        recalibrate_run(run)
    with pytest.raises(SettingError, match="fit_split = report_split"):
        recalibrate_run(run, fit_split="test")
    with pytest.raises(SettingError, match=r"has no stream logits_train.*probes\.logits"):
        recalibrate_run(run, fit_split="train")

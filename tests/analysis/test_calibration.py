"""Binned calibration metrics against loops, other libraries and the inequalities that they obey."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.metrics import ECE as NetcalECE
from netcal.metrics import MCE as NetcalMCE
from torchmetrics.functional.classification import multiclass_calibration_error

from analysis import calibration as cal
from analysis.plugins import SettingError
from tests.analysis import calibration_cases as twin
from tests.analysis.calibration_cases import classified, random_logits, random_samples, samples

NORMS = st.sampled_from(["l1", "l2", "max"])
SIDES = st.sampled_from(["right", "left"])


@settings(max_examples=150)
@given(samples(), st.integers(1, 20), NORMS, SIDES, st.booleans(), st.sampled_from(["width", "mass"]))
def test_ece_is_the_loop_over_bins(data, bins, norm, closed, debias, binning):
    confidence, correct = data
    debias = debias and norm == "l2"
    index = (twin.bins_of if binning == "width" else twin.parts_of)(confidence, bins, closed)
    expected = twin.ece(confidence, correct, index, norm, debias)
    found = cal.ece(confidence, correct, bins, binning, norm, closed, debias)
    # The root of a square of 1e-16 is 1e-8.
    assert found == pytest.approx(expected, abs=1e-12 if norm != "l2" else 1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bins", [1, 2, 3, 7, 10, 15, 20, 49, 100])
def test_every_edge_is_closed_on_the_stated_side_in_every_type(bins, dtype):
    edge = np.array([k / bins for k in range(bins + 1)], dtype=dtype)
    correct = np.ones(bins + 1, dtype=bool)
    right = cal.reliability(edge, correct, bins, closed="right").count
    left = cal.reliability(edge, correct, bins, closed="left").count
    assert right.tolist() == [2, *[1] * (bins - 1)]
    assert left.tolist() == [*[1] * (bins - 1), 2]
    above = np.nextafter(edge[:-1], dtype(1), dtype=dtype)
    below = np.nextafter(edge[1:], dtype(0), dtype=dtype)
    for closed in ("right", "left"):
        assert (cal.reliability(above, correct[1:], bins, closed=closed).count == 1).all()
        assert (cal.reliability(below, correct[1:], bins, closed=closed).count == 1).all()


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_long_rows_take_the_same_bins_as_a_search(dtype, closed):
    for bins in (*range(1, 40), 97, 1000):
        edge = np.array([k / bins for k in range(bins + 1)]).astype(dtype)
        score = np.concatenate([edge, np.nextafter(edge[:-1], dtype(1)), np.nextafter(edge[1:], dtype(0))])
        score = np.concatenate([score, np.random.default_rng(0).uniform(size=1000).astype(dtype)])
        side = "left" if closed == "right" else "right"
        index = np.searchsorted(edge[1:-1], score, side=side)
        correct = np.arange(len(score)) % 3 == 0
        expected = np.abs(np.bincount(index, correct - score.astype(float), minlength=bins)).sum() / len(score)
        assert cal.ece(score, correct, bins, closed=closed) == pytest.approx(expected, abs=1e-12)


def test_long_rows_and_short_ones_round_alike(monkeypatch):
    confidence, correct = random_samples(1500, shape=(2, 3))
    fast = cal.ece(confidence, correct)
    assert fast[1, 2] == cal.ece(confidence[1, 2], correct[1, 2])
    monkeypatch.setattr(cal, "_LONG_ROW", 10**9)
    np.testing.assert_array_equal(fast, cal.ece(confidence, correct))


@pytest.mark.parametrize("value", [np.nan, -0.1, 1.1])
def test_a_bad_entry_of_a_long_row_is_named_too(value):
    confidence, correct = random_samples(1500, shape=(2,))
    confidence[1, 7] = value
    with pytest.raises(cal.InputError, match=rf"confidence at \(1, 7\) is {value}"):
        cal.ece(confidence, correct)


def test_average_ties_split_a_tie_and_share_its_outcome():
    confidence, correct = np.array([0.9, 0.8, 0.8, 0.8, 0.8, 0.5]), np.array([1, 1, 0, 0, 0, 1])
    shared = np.array([1, 0.25, 0.25, 0.25, 0.25, 1])
    expected = (abs((shared - confidence)[[5, 1, 2]].mean()) + abs((shared - confidence)[[3, 4, 0]].mean())) / 2
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 1, 3, 2, 0]):
        found = cal.ece(confidence[order], correct[order], 2, "mass", ties="average")
        assert found == pytest.approx(expected, abs=1e-15)


def test_equal_mass_sizes_differ_by_one_and_the_larger_come_first():
    confidence, correct = random_samples(17)
    assert cal.reliability(confidence, correct, 5, "mass").count.tolist() == [4, 4, 3, 3, 3]


METRICS = {
    "ece": cal.ece,
    "ece mass": lambda c, a: cal.ece(c, a, binning="mass"),
    "ece mass average": lambda c, a: cal.ece(c, a, binning="mass", ties="average"),
    "ece l2 debiased": lambda c, a: cal.ece(c, a, norm="l2", debias=True),
    "mce": cal.mce,
    "kce": cal.kce,
    "kce unbiased": lambda c, a: cal.kce(c, a, estimator="unbiased", squared=True),
    "weighted_kce": cal.weighted_kce,
    "smooth_ece": cal.smooth_ece,
    "soft_ece": cal.soft_ece,
    "aurc": cal.aurc,
    "selective_risk": lambda c, a: cal.selective_risk(c, a, 0.4),
    "confidence_gap": cal.confidence_gap,
    "mean_absolute_gap": cal.mean_absolute_gap,
    "mean_confidence": lambda c, a: cal.mean_confidence(c),
    "accuracy": lambda c, a: cal.accuracy(a),
    "brier reliability": lambda c, a: cal.confidence_brier_decomposition(c, a).reliability,
    "brier covariance": lambda c, a: cal.confidence_brier_decomposition(c, a).within_covariance,
    "refinement": lambda c, a: cal.confidence_refinement(c, a).refinement,
    "reliability": lambda c, a: cal.reliability(c, a, 5).accuracy,
}
LOGIT_METRICS = {
    "classwise_ece": lambda z, y: cal.classwise_ece(z, y, from_logits=True),
    "skce": lambda z, y: cal.skce(z, y, from_logits=True),
    "brier": lambda z, y: cal.brier(z, y, from_logits=True),
    "brier_decomposition": lambda z, y: cal.brier_decomposition(z, y, from_logits=True).resolution,
    "nll": cal.nll,
    "temperature": cal.fit_temperature,
    "refinement": lambda z, y: cal.calibration_refinement(z, y).refinement,
    "confidence": lambda z, y: cal.top_label(z, y, from_logits=True)[0],
}


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=15)
@given(data=samples(least=2), seed=st.integers(0, 99))
def test_the_order_of_samples_does_not_matter(name, data, seed):
    confidence, correct = data
    order = np.random.default_rng(seed).permutation(len(confidence))
    a, b = METRICS[name](confidence, correct), METRICS[name](confidence[order], correct[order])
    root = name in ("kce", "weighted_kce", "ece l2 debiased")
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-7 if root else 1e-9)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_batch_equals_its_rows_bit_for_bit(name, dtype):
    confidence, correct = random_samples(203, shape=(2, 3))
    confidence = np.round(confidence, 2).astype(dtype)
    # Samples first in memory: a batch as a caller may happen to hold it.
    scattered = np.ascontiguousarray(np.moveaxis(confidence, -1, 0))
    batch = METRICS[name](np.moveaxis(scattered, 0, -1), correct)
    assert batch.shape[:2] == (2, 3)
    for place in np.ndindex(2, 3):
        np.testing.assert_array_equal(batch[place], METRICS[name](confidence[place], correct[place]))


@pytest.mark.parametrize("name", LOGIT_METRICS)
def test_a_batch_of_logits_equals_its_rows_bit_for_bit(name):
    logits, labels = random_logits(240, classes=7)
    logits, labels = logits.reshape(2, 3, 40, 7), labels.reshape(2, 3, 40)
    scattered = np.asfortranarray(logits)
    batch = LOGIT_METRICS[name](scattered, labels)
    for place in np.ndindex(2, 3):
        np.testing.assert_array_equal(batch[place], LOGIT_METRICS[name](logits[place], labels[place]))


@pytest.mark.parametrize("n", [1, 30, 1200])
def test_no_metric_writes_into_its_input(n):
    for table, data in [(METRICS, random_samples(max(n, 2))), (LOGIT_METRICS, random_logits(n))]:
        for array in data:
            array.flags.writeable = False
        for name, metric in table.items():
            if n < 1000 or name != "skce":
                metric(*data)


def test_one_row_gives_a_number():
    confidence, correct = random_samples(9)
    for name in ("ece", "kce", "smooth_ece", "aurc", "confidence_gap", "soft_ece", "accuracy"):
        assert isinstance(METRICS[name](confidence, correct), float)
    assert isinstance(cal.nll(*random_logits(9)), float)


@given(samples(), st.integers(1, 30), st.sampled_from(["width", "mass"]), SIDES)
def test_ece_lies_between_the_total_gap_and_the_mean_absolute_gap(data, bins, binning, closed):
    ece = cal.ece(*data, bins, binning, closed=closed)
    assert ece <= cal.mean_absolute_gap(*data) + 1e-12
    assert ece >= abs(cal.confidence_gap(*data)) - 1e-12
    assert ece <= cal.ece(*data, bins, binning, "l2", closed) + 1e-12 <= cal.mce(*data, bins, binning, closed) + 2e-12


@given(samples(), st.integers(1, 12), st.integers(1, 5), SIDES)
def test_finer_bins_never_lower_the_ece(data, bins, parts, closed):
    assert cal.ece(*data, bins, closed=closed) <= cal.ece(*data, bins * parts, closed=closed) + 1e-12


@given(samples())
def test_when_all_are_correct_ece_is_one_minus_confidence_for_any_bins(data):
    confidence = data[0]
    found = cal.ece(confidence, np.ones_like(confidence, dtype=bool), 7)
    assert found == pytest.approx((1 - confidence).mean(), abs=1e-12)


def distinct(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of three classes, no score on an edge: other libraries are right here."""
    logits, labels = random_logits(n, classes=3, seed=4)
    return twin.softmax(logits), labels


def test_ece_agrees_with_torchmetrics_and_netcal():
    p, y = distinct(500)
    confidence, correct = cal.top_label(p, y, from_logits=False)
    for norm in ("l1", "l2", "max"):
        theirs = multiclass_calibration_error(torch.tensor(p), torch.tensor(y), 3, n_bins=15, norm=norm)
        assert cal.ece(confidence, correct, norm=norm) == pytest.approx(theirs.item(), abs=1e-6)
    assert cal.ece(confidence, correct, 10) == pytest.approx(NetcalECE(10).measure(p, y), abs=1e-9)
    assert cal.mce(confidence, correct, 10) == pytest.approx(NetcalMCE(10).measure(p, y), abs=1e-9)


def test_classwise_ece_averages_the_columns():
    p, y = distinct(120)
    expected = np.mean([cal.ece(p[:, k], y == k, 8) for k in range(3)])
    assert cal.classwise_ece(p, y, from_logits=False, bins=8) == pytest.approx(expected, abs=1e-15)


def test_reliability_table_has_the_numbers_behind_the_ece():
    confidence, correct = random_samples(300)
    frame = cal.reliability(confidence, correct, 10).to_frame()
    assert frame["count"].sum() == 300
    assert frame["lower"].tolist() == [b / 10 for b in range(10)]
    weighted = (frame["count"] / 300 * frame["gap"].abs()).sum()
    assert weighted == pytest.approx(cal.ece(confidence, correct, 10), abs=1e-12)
    empty = frame["count"] == 0
    assert frame.loc[empty, ["confidence", "accuracy", "gap"]].isna().all(axis=None)


def test_equal_mass_reliability_shows_what_each_bin_spans():
    confidence, correct = random_samples(30, shape=(2,))
    frame = cal.reliability(confidence, correct, 3, "mass").to_frame()
    assert frame["row"].tolist() == [0, 0, 0, 1, 1, 1]
    first = np.sort(confidence[0])
    assert frame["lower"].tolist()[:3] == first[[0, 10, 20]].tolist()
    assert frame["upper"].tolist()[:3] == first[[9, 19, 29]].tolist()


@given(classified())
def test_top_label_reads_logits_in_float64(data):
    logits, labels = data
    confidence, correct = cal.top_label(logits, labels, from_logits=True)
    np.testing.assert_allclose(confidence, twin.softmax(logits).max(axis=1), rtol=1e-14)
    np.testing.assert_array_equal(correct, [int(np.argmax(z)) == y for z, y in zip(logits, labels, strict=True)])


def test_a_tie_is_the_first_class_or_shared_as_asked():
    p = np.array([[0.4, 0.4, 0.2]] * 3)
    assert cal.top_label(p, [0, 1, 2], from_logits=False)[1].tolist() == [True, False, False]
    assert cal.top_label(p, [0, 1, 2], from_logits=False, ties="share")[1].tolist() == [0.5, 0.5, 0.0]


def test_half_precision_is_upcast_before_the_softmax():
    logits = np.array([[11.0, 3.0, -4.0], [60000.0, 0.0, 1.0]])
    exact, _ = cal.top_label(logits[:1], [0], from_logits=True)
    half, _ = cal.top_label(logits.astype(np.float16), [0, 0], from_logits=True)
    brain, _ = cal.top_label(torch.tensor(logits, dtype=torch.bfloat16, requires_grad=True), [0, 0], from_logits=True)
    for found in (half, brain):
        assert found.dtype == np.float64
        assert found[0] == exact[0]
        assert found[1] == 1.0
    probabilities = np.array([[0.7, 0.2, 0.1]], dtype=np.float16)
    assert cal.top_label(probabilities, [0], from_logits=False)[0].dtype == np.float16


P = np.array([[0.7, 0.3], [0.4, 0.6]])
BAD_PROBABILITIES = {
    "nan": (np.array([[0.7, 0.3], [np.nan, 0.6]]), [0, 1], r"probability at \(1, 0\) is nan"),
    "unnormalised": (np.array([[0.7, 0.3], [0.5, 0.6]]), [0, 1], "row 1 sum to 1.1"),
    "negative": (np.array([[1.2, -0.2]]), [0], r"probability at \(0, 0\) is 1.2"),
    "label too large": (P, [0, 2], "label at 1 is 2; expected 0 to 1"),
    "label negative": (P, [-1, 0], "label at 0 is -1"),
    "float labels": (P, [0.0, 1.0], "labels are float64; expected integers"),
    "lengths": (P, [0, 1, 1], "3 labels for 2 rows"),
    "scalar label": (P, 1, "a single labels for 2 rows"),
    "empty": (np.zeros((0, 2)), [], "empty"),
    "one class": (np.ones((3, 1)), [0, 0, 0], "K >= 2"),
    "exchanged": ([0, 1], P, "K >= 2"),
    "ragged": ([[0.5, 0.5], [1.0]], [0, 1], "unequal length"),
    "text": ([["a", "b"]], [0], "expected real numbers"),
    "batch": (np.stack([P, P, P]), np.zeros((2, 2), int), r"labels have shape \(2, 2\)"),
}


@pytest.mark.parametrize("case", BAD_PROBABILITIES)
def test_bad_probabilities_are_refused_by_row_and_value(case):
    values, labels, message = BAD_PROBABILITIES[case]
    for metric in (cal.top_label, cal.brier, cal.classwise_ece, cal.skce):
        with pytest.raises(cal.InputError, match=message):
            metric(values, labels, from_logits=False)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value):
    logits = np.array([[1.0, 2.0], [value, 0.0]])
    for metric in (cal.nll, cal.fit_temperature, lambda z, y: cal.top_label(z, y, from_logits=True)):
        with pytest.raises(cal.InputError, match=r"logits at \(1, 0\)"):
            metric(logits, [0, 0])


BAD_SCORES = {
    "nan": ([0.5, np.nan], [1, 0], "confidence at 1 is nan"),
    "above one": ([0.5, 1.5], [1, 0], "confidence at 1 is 1.5"),
    "inf": ([np.inf, 0.5], [1, 0], "confidence at 0 is inf"),
    "correct": ([0.5, 0.5], [1, 2], "correct at 1 is 2"),
    "nan correct": ([0.5, 0.5], [1, np.nan], "correct at 1 is nan"),
    "lengths": ([0.5, 0.5], [1], "expected equal"),
    "batches": (np.full((2, 3), 0.5), np.ones((3, 3)), "expected equal"),
    "empty": (np.zeros(0), np.zeros(0), "empty"),
    "exchanged": (np.array([True, False]), [0.5, 0.25], "exchanged"),
    "scalar": (0.5, 1, "expected equal"),
}


@pytest.mark.parametrize("case", BAD_SCORES)
def test_bad_scores_are_refused_by_row_and_value(case):
    confidence, correct, message = BAD_SCORES[case]
    for metric in (cal.ece, cal.kce, cal.smooth_ece, cal.aurc, cal.soft_ece, cal.reliability):
        with pytest.raises(cal.InputError, match=message):
            metric(confidence, correct)


BAD_OPTIONS = [
    (cal.ece, {"bins": 0}, "bins = 0"),
    (cal.ece, {"bins": 2.5}, r"bins = 2\.5"),
    (cal.ece, {"binning": "size"}, "binning = 'size'; accepted: 'width', 'mass'"),
    (cal.ece, {"norm": "l3"}, "norm = 'l3'"),
    (cal.ece, {"closed": "both"}, "closed = 'both'"),
    (cal.ece, {"ties": "random"}, "ties = 'random'"),
    (cal.ece, {"debias": True}, "accepted: norm = 'l2'"),
    (cal.kce, {"width": 0.0}, "width = 0.0"),
    (cal.kce, {"estimator": "unbiased"}, "squared = True"),
    (cal.kce, {"estimator": "third", "squared": True}, "estimator = 'third'"),
    (cal.smooth_ece, {"bandwidth": -1.0}, "bandwidth = -1.0"),
    (cal.aurc, {"rule": "sum"}, "rule = 'sum'"),
    (cal.selective_risk, {"coverage": 0.0}, "coverage = 0.0"),
    (cal.soft_ece, {"sigma": 0.0}, "sigma = 0.0"),
    (cal.soft_ece, {"delta": -1.0}, "delta = -1.0"),
    (cal.bootstrap, {"level": 1.0}, "level = 1.0"),
]


@pytest.mark.parametrize(("metric", "options", "message"), BAD_OPTIONS)
def test_a_wrong_option_names_what_is_accepted(metric, options, message):
    confidence, correct = random_samples(10)
    arguments = (cal.ece, confidence, correct) if metric is cal.bootstrap else (confidence, correct)
    with pytest.raises(SettingError, match=message):
        metric(*arguments, **options)


def test_positive_class_needs_two_classes():
    with pytest.raises(cal.InputError, match="3 classes; expected 2"):
        cal.positive_class(np.full((2, 3), 1 / 3), [0, 1], from_logits=False)

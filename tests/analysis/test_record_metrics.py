"""Run.metric against the definitions written out sample by sample, and the lazy xarray view."""

import builtins
import math

import numpy as np
import pytest

from analysis.metrics import METRICS
from analysis.plugins import SettingError
from analysis.record import Run, Writer
from tests.analysis.record_samples import append, header

STEPS, SAMPLES, CLASSES = 9, 40, 4


@pytest.fixture(scope="module")
def logits():
    """Logits that grow, float64 [steps, n, K]: from nearly uniform to margins of some 40."""
    random = np.random.default_rng(0)
    z = random.normal(size=(STEPS, SAMPLES, CLASSES)) * np.geomspace(0.1, 15, STEPS)[:, None, None]
    return z.astype(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def labels():
    return np.random.default_rng(1).integers(0, CLASSES, SAMPLES)


def columns(z: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The examples of one step, sample by sample."""
    rows = []
    for logits, label in zip(z, y, strict=True):
        best = int(np.argmax(logits))

        def others(k, logits=logits):
            return [logits[j] for j in range(CLASSES) if j != k]

        def log_one_minus_p(k, logits=logits, others=others):
            top = max(others(k))
            rest = top + math.log(math.fsum(math.exp(v - top) for v in others(k)))
            return (
                -math.log1p(math.exp(logits[k] - rest))
                if logits[k] < rest
                else rest - logits[k] - math.log1p(math.exp(rest - logits[k]))
            )

        rows.append(
            (
                logits[label] - max(others(label)),
                logits[best] - max(others(best)),
                best == label,
                log_one_minus_p(best),
                log_one_minus_p(label),
            )
        )
    names = ["margin", "predicted_margin", "correct", "log_one_minus_confidence", "log_one_minus_p_true"]
    table = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    return {name: v if name == "correct" else v.astype(np.float32) for name, v in table.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory, logits, labels):
    path = tmp_path_factory.mktemp("metrics") / "a"
    with Writer.create(path, header()) as writer:
        writer.static("labels_train", labels=labels)
        for i, z in enumerate(logits):
            step = 10 * i
            writer.append("scalars", step, loss_train=float(i), loss_test=-float(i))
            writer.append("examples_train", step, **columns(z, labels))
            writer.append("logits_train", step, logits=z.astype(np.float32))
            if i % 4 == 3:
                writer.flush()
        writer.append("scalars", 100, lambda_max=7.0)
        writer.append("scalars", 101, lambda_max=math.nan)
    return Run.open(path)


def probabilities(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def by_step(compute, logits) -> list[float]:
    return [compute(z) for z in logits]


def margins_of(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.array([row[k] - max(v for j, v in enumerate(row) if j != k) for row, k in zip(z, y, strict=True)])


def test_metrics_equal_their_definitions(run, logits, labels):
    def p_true(z):
        return probabilities(z)[np.arange(SAMPLES), labels]

    definitions = {
        "accuracy": lambda z: np.mean(z.argmax(1) == labels),
        "mean_confidence": lambda z: probabilities(z).max(1).mean(),
        "mean_one_minus_p_true": lambda z: np.mean(1 - p_true(z)),
        "nll": lambda z: np.mean(-np.log(p_true(z))),
        "exp_moment": lambda z: np.mean(np.exp(-margins_of(z, labels))),
        "log_exp_moment": lambda z: np.log(np.mean(np.exp(-margins_of(z, labels)))),
        "confidence_gap": lambda z: probabilities(z).max(1).mean() - np.mean(z.argmax(1) == labels),
        "mean_absolute_gap": lambda z: np.abs((z.argmax(1) == labels) - probabilities(z).max(1)).mean(),
        "exp_moment_predicted": lambda z: np.mean(np.exp(-margins_of(z, z.argmax(1)))),
        "mean_margin": lambda z: margins_of(z, labels).mean(),
        "min_margin": lambda z: margins_of(z, labels).min(),
        "margin_quantile": lambda z: np.median(margins_of(z, labels)),
    }
    for name, definition in definitions.items():
        series = run.metric(name)
        assert series.name == name
        assert series.dtype == np.float64
        np.testing.assert_array_equal(series.index, np.arange(0, 10 * STEPS, 10))
        np.testing.assert_allclose(series, by_step(definition, logits), rtol=2e-6, err_msg=name)


def test_ece_counts_the_bins(run, logits, labels):
    def ece(z, bins):
        confidence, correct = probabilities(z).max(1), z.argmax(1) == labels
        total = 0.0
        for b in range(bins):
            inside = [i for i, c in enumerate(confidence) if b / bins < c <= (b + 1) / bins]
            total += abs(math.fsum(float(correct[i]) - confidence[i] for i in inside))
        return total / SAMPLES

    np.testing.assert_allclose(run.metric("ece"), by_step(lambda z: ece(z, 15), logits), rtol=1e-6)
    np.testing.assert_allclose(run.metric("ece", bins=4), by_step(lambda z: ece(z, 4), logits), rtol=1e-6)


def test_kce_sums_over_pairs(run, logits, labels):
    def kce(z):
        c, a = probabilities(z).max(1), z.argmax(1) == labels
        pairs = [
            (a[i] - c[i]) * (a[j] - c[j]) * math.exp(-abs(c[i] - c[j]) / 0.4)
            for i in range(SAMPLES)
            for j in range(SAMPLES)
        ]
        return math.sqrt(math.fsum(pairs)) / SAMPLES

    np.testing.assert_allclose(run.metric("kce"), by_step(kce, logits), rtol=1e-5)


def test_brier_reads_the_logits(run, logits, labels):
    def brier(z):
        return ((probabilities(z) - np.eye(CLASSES)[labels]) ** 2).sum(1).mean()

    np.testing.assert_allclose(run.metric("brier"), by_step(brier, logits), rtol=1e-6)


def test_confidence_close_to_one_keeps_its_digits(tmp_path):
    """At margin 40, 1 - confidence is 4.2e-18 and would be 0 in a stored confidence; Q and the log column keep it."""
    with Writer.create(tmp_path / "a", header()) as writer:
        writer.append("examples_train", 0, **columns(np.array([[40.0, 0, 0, -5]]), np.array([0])))
    run = Run.open(tmp_path / "a")
    assert run.metric("mean_one_minus_p_true")[0] == pytest.approx((2 + math.exp(-5)) * math.exp(-40), rel=1e-5)
    assert run.metric("exp_moment")[0] == pytest.approx(math.exp(-40), rel=1e-6)


def test_a_true_class_that_underflows_leaves_the_nll_out(tmp_path):
    with Writer.create(tmp_path / "a", header()) as writer:
        for step, margin in enumerate([100.0, 200.0]):
            z = np.array([[0.0, margin, 0, 0]])
            writer.append("examples_train", step, **columns(z, np.array([0])))
    nll = Run.open(tmp_path / "a").metric("nll")
    assert list(nll.index) == [0]
    assert nll[0] == pytest.approx(100, rel=1e-3)


def test_scalars_by_name_with_or_without_the_split(run):
    assert run.metric("loss").name == "loss"
    np.testing.assert_array_equal(run.metric("loss"), np.arange(STEPS))
    np.testing.assert_array_equal(run.metric("loss", split="test"), -np.arange(STEPS))
    np.testing.assert_array_equal(run.metric("loss_test", split="train"), -np.arange(STEPS))
    sharpness = run.metric("lambda_max")
    assert sharpness.to_dict() == {100: 7.0}
    assert sharpness.index.name == "step"


def test_chunks_change_nothing(run, monkeypatch):
    whole = {name: run.metric(name) for name in ("ece", "kce", "exp_moment", "brier")}
    monkeypatch.setattr("analysis.run.CHUNK_BYTES", 1)
    again = Run.open(run.path)
    for name, series in whole.items():
        np.testing.assert_array_equal(again.metric(name), series)


def test_a_metric_is_computed_once_and_returned_as_a_copy(run, monkeypatch):
    first = run.metric("ece", bins=7)
    expected = first.copy()
    first[:] = 9
    monkeypatch.setattr(type(run), "chunks", None)
    np.testing.assert_array_equal(run.metric("ece", bins=7), expected)


@pytest.mark.parametrize(
    ("name", "split", "options", "sentence"),
    [
        ("lambda", "train", {}, r"'lambda': not in run a; recorded: loss_train, .*lambda_max; .*accuracy, .*ece"),
        ("step", "train", {}, "not in run a"),
        ("ece", "test", {}, r"no stream examples_test; .*probes.examples"),
        ("brier", "test", {}, r"no stream logits_test; .*probes.logits"),
        ("ece", "train", {"bin": 3}, "unknown option bin; accepted: bins"),
        ("brier", "train", {"from_logits": False}, "unknown option from_logits; accepted: scale"),
        ("ece", "train", {"norm": "l3"}, "l3"),
        ("selective_risk", "train", {}, "needs the option coverage"),
        ("accuracy", "train", {"bins": 3}, "unknown option bins; accepted: none"),
        ("loss", "train", {"bins": 3}, "'loss'"),
        ("margin_quantile", "train", {"q": 1.5}, r"q = 1.5; expected a number in \[0, 1\]"),
    ],
)
def test_a_wrong_metric_is_answered_with_a_sentence(run, name, split, options, sentence):
    with pytest.raises(SettingError, match=sentence):
        run.metric(name, split=split, **options)


def test_every_metric_has_one_number_a_step(run):
    options = {"selective_risk": {"coverage": 0.5}}
    for name in METRICS:
        series = run.metric(name, **options.get(name, {}))
        np.testing.assert_array_equal(series.index, np.arange(0, 10 * STEPS, 10), err_msg=name)


# xarray -------------------------------------------------------------------------------------------------------


def test_the_dataset_holds_every_column(run):
    pytest.importorskip("xarray")
    data = run.to_xarray()
    assert data["examples_train_margin"].dims == ("step_examples_train", "sample_train")
    assert data["logits_train_logits"].dims == ("step_logits_train", "sample_train", "class")
    assert data.attrs["id"] == "a"
    for stream in ("examples_train", "logits_train"):
        for name in run.columns(stream):
            np.testing.assert_array_equal(data[f"{stream}_{name}"], run.column(stream, name))
    np.testing.assert_array_equal(data["lambda_max"], run.frame()["lambda_max"])
    np.testing.assert_array_equal(data["step"], run.steps())


@pytest.mark.parametrize(
    "index",
    [
        (0,),
        (-1, 3),
        (slice(2, 7, 2), slice(None, None, -1)),
        (slice(None), [5, 1]),
        ([7, 0, 3],),
        (slice(-2, None), 4),
        ([1], [2, 2]),
    ],
)
def test_the_dataset_is_indexed_like_an_array(run, index):
    pytest.importorskip("xarray")
    margin = run.column("examples_train", "margin")
    full = index if len(index) == 2 else (*index, slice(None))
    found = run.to_xarray()["examples_train_margin"][index]
    expected = margin[full[0]][..., full[1]] if isinstance(full[0], int) else margin[full[0]][:, full[1]]
    np.testing.assert_array_equal(found, expected)


def test_the_dataset_reads_only_what_is_used(tmp_path):
    pytest.importorskip("xarray")
    with Writer.create(tmp_path / "a", header()) as writer:
        for start in range(0, 20, 10):
            append(writer, range(start, start + 10))
            writer.flush()
    run = Run.open(tmp_path / "a")
    data = run.to_xarray()
    (tmp_path / "a" / "examples_train" / "00000000-00000009.npz").unlink()
    np.testing.assert_array_equal(
        data["examples_train_margin"].sel(step_examples_train=slice(12, 14)),
        run.rows("examples_train", "margin", [12, 13, 14]),
    )


def test_without_xarray_the_sentence_names_the_extra(run, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "xarray":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(__import__("sys").modules, "analysis.lazy", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingError, match=r"install margintail\[notebook\]"):
        run.to_xarray()

"""Each method against another library or torch, and what every method owes its caller."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.binning import HistogramBinning as NetcalHistogram
from scipy.optimize import minimize
from sklearn.calibration import _sigmoid_calibration
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from analysis import calibration as cal
from analysis.plugins import SettingError
from analysis.recalibration import RECALIBRATIONS, Calibrator, Recalibration, fit, named
from analysis.recalibration._network import initial, train
from analysis.recalibration.isotonic import Isotonic
from analysis.recalibration.platt import Platt
from analysis.recalibration.smart import Smart
from tests.analysis import calibration_cases as twin
from tests.analysis.calibration_cases import classified, random_logits

METHODS: list[dict[str, Any]] = [
    {"name": "temperature"},
    {"name": "platt"},
    {"name": "platt", "classes": "top_label"},
    {"name": "isotonic"},
    {"name": "isotonic", "classes": "top_label"},
    {"name": "histogram", "bins": 10},
    {"name": "histogram", "classes": "top_label"},
    {"name": "vector"},
    {"name": "beta"},
    {"name": "beta", "classes": "top_label"},
    {"name": "smart", "epochs": 30},
    {"name": "smart", "hidden": [16, 16], "delta": 1e-3, "epochs": 30},
]


def label(table: dict[str, Any]) -> str:
    return "-".join(str(value) for value in table.values())


each_method = pytest.mark.parametrize("table", METHODS, ids=label)


def test_the_folder_has_the_methods():
    assert set(RECALIBRATIONS.names()) == {
        "beta",
        "histogram",
        "isotonic",
        "platt",
        "smart",
        "temperature",
        "vector",
    }
    assert {table["name"] for table in METHODS} == set(RECALIBRATIONS.names())


@each_method
@settings(max_examples=12, deadline=None)
@given(data=classified(), factor=st.sampled_from([1.0, 1e-3, 30.0]))
def test_probabilities_come_out_whatever_goes_in(table, data, factor):
    logits, labels = data
    calibrator = fit(table, factor * logits, labels)
    p = calibrator(logits[::-1])
    assert p.shape == logits.shape
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-12)
    if calibrator.method.preserves_argmax:
        top = logits[::-1].argmax(axis=1)
        assert (p[np.arange(len(p)), top] == p.max(axis=1)).all()


@each_method
def test_the_predicted_class_stays_exactly_where_it_is_promised(table):
    logits, labels = random_logits(400, seed=3)
    other, _ = random_logits(4000, seed=5)
    calibrator = fit(table, logits, labels)
    same = calibrator(other).argmax(axis=1) == other.argmax(axis=1)
    if calibrator.method.preserves_argmax:
        assert same.all()
    elif table.get("classes") == "top_label":
        assert same.mean() > 0.9
    else:
        assert not same.all()


def test_a_top_label_rate_below_one_in_k_is_not_the_likeliest_class():
    logits = np.array([[0.1, 0.0, -3.0]] * 20)
    p = fit({"name": "isotonic", "classes": "top_label"}, logits, [1] * 19 + [0])(logits[:1])[0]
    np.testing.assert_allclose(p, [1 / 20, 19 / 40, 19 / 40], rtol=1e-12)


@pytest.mark.parametrize("name", ["isotonic", "histogram", "platt", "beta"])
def test_the_confidence_of_a_top_label_method_is_its_rate(name):
    # So sure that nearly all of the rest was the second class's.
    logits, labels = random_logits(500, scale=12.0)
    calibrator = fit({"name": name, "classes": "top_label"}, logits, labels)
    p, top = calibrator(logits), logits.argmax(axis=1)
    scores = calibrator.method.scores_of(logits)[np.arange(500), top]
    rate = calibrator.method.apply_scores({k: v[0] for k, v in calibrator.parameters.items()}, scores)
    sure = rate > 1 / 5
    assert sure.sum() > 400
    np.testing.assert_array_equal(p[sure].argmax(axis=1), top[sure])
    np.testing.assert_array_equal(p[sure].max(axis=1), rate[sure])


def test_the_other_classes_keep_their_proportions_where_they_can():
    logits = np.array([[1.0, 0.0, -1.0, -1.5]] * 10)
    p = fit({"name": "isotonic", "classes": "top_label"}, logits, [0] * 6 + [1] * 4)(logits[:1])[0]
    before = twin.softmax(logits[0])
    assert p[0] == pytest.approx(0.6)
    np.testing.assert_allclose(p[1:] / p[1], before[1:] / before[1], rtol=1e-12)


@each_method
def test_a_calibrator_survives_json_to_the_last_bit(table):
    logits, labels = random_logits(60)
    calibrator = fit(table, logits, labels)
    text = calibrator.to_json()
    again = Calibrator.from_json(text)
    assert again.method == calibrator.method
    np.testing.assert_array_equal(again(logits), calibrator(logits))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@each_method
def test_a_calibrator_takes_a_batch(table):
    logits, labels = random_logits(60)
    calibrator = fit(table, logits, labels)
    batch = calibrator(logits.reshape(2, 30, 5))
    # A product of matrices may round by the number of its rows.
    np.testing.assert_allclose(batch.reshape(60, 5), calibrator(logits), rtol=0, atol=1e-15)


@each_method
def test_overconfident_logits_become_better_calibrated(table):
    logits, labels = random_logits(3000, scale=4.0)
    table = {key: value for key, value in table.items() if key != "epochs"}
    p = fit(table, logits[:1500], labels[:1500])(logits[1500:])
    before = cal.ece(*cal.top_label(logits[1500:], labels[1500:], from_logits=True))
    after = cal.ece(*cal.top_label(p, labels[1500:], from_logits=False))
    assert after < before / 3


def test_temperature_finds_the_factor_that_spoilt_the_logits():
    logits, labels = random_logits(50_000, scale=3.0)
    assert fit("temperature", logits, labels).parameters["temperature"] == pytest.approx(3.0, rel=0.03)


@settings(max_examples=60)
@given(classified())
def test_temperature_scaling_never_raises_the_nll_of_its_own_fit_set(data):
    logits, labels = data
    p = fit("temperature", logits, labels)(logits)
    assert cal.nll(p, labels, from_logits=False) <= cal.nll(logits, labels) * (1 + 1e-12) + 1e-15


def scores_and_outcomes(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    scores = np.round(generator.normal(size=n), 2)
    return scores, (generator.uniform(size=n) < 1 / (1 + np.exp(-2 * scores + 0.5))).astype(float)


def test_isotonic_is_scikit_learns():
    scores, outcomes = scores_and_outcomes()
    query = np.linspace(-5, 5, 997)
    expected = IsotonicRegression(out_of_bounds="clip").fit(scores, outcomes).predict(query)
    method = Isotonic()
    found = method.apply_scores(method.fit_scores(scores, outcomes), query)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_platt_is_scikit_learns():
    scores, outcomes = scores_and_outcomes()
    slope, intercept = _sigmoid_calibration(scores, outcomes)
    fitted = Platt().fit_scores(scores, outcomes)
    # Theirs stops earlier.
    assert fitted["slope"] == pytest.approx(-slope, rel=1e-3)
    assert fitted["intercept"] == pytest.approx(-intercept, rel=1e-3)


def test_platt_without_smoothing_is_logistic_regression():
    scores, outcomes = scores_and_outcomes()
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(scores[:, None], outcomes)
    for factor in (1.0, 1e4):
        fitted = Platt(target_smoothing=False).fit_scores(factor * scores, outcomes)
        assert fitted["slope"] * factor == pytest.approx(model.coef_[0, 0], rel=1e-5)
        assert fitted["intercept"] == pytest.approx(model.intercept_[0], rel=1e-5)


def test_platt_of_two_classes_is_one_map_and_its_complement():
    logits, labels = random_logits(200, classes=2)
    calibrator = fit("platt", logits, labels)
    odds = logits[:, 1] - logits[:, 0]
    fitted = Platt().fit_scores(odds, (labels == 1) * 1.0)
    expected = 1 / (1 + np.exp(-fitted["slope"] * odds - fitted["intercept"]))
    np.testing.assert_allclose(calibrator(logits)[:, 1], expected, rtol=0, atol=1e-7)


def test_histogram_is_netcals_where_no_score_is_on_an_edge():
    logits, labels = random_logits(1000, classes=2)
    p = twin.softmax(logits)[:, 1]
    theirs = NetcalHistogram(bins=10).fit(p, labels).transform(p)
    calibrator = fit({"name": "histogram", "bins": 10}, logits, labels)
    np.testing.assert_allclose(calibrator(logits)[:, 1], theirs, rtol=0, atol=1e-12)


def test_an_empty_histogram_bin_leaves_the_score():
    calibrator = fit({"name": "histogram", "bins": 4}, [[3.0, 0.0], [4.0, 0.0]], [0, 0])
    far = np.array([[0.5, 0.0]])
    np.testing.assert_allclose(calibrator(far), twin.softmax(far), rtol=1e-15)
    assert calibrator([[5.0, 0.0]]).tolist() == [[1.0, 0.0]]


def test_beta_is_the_constrained_optimum():
    logits, labels = random_logits(400, classes=2, scale=2.5)
    p = twin.softmax(logits)[:, 1]
    outcome = labels == 1

    def loss(theta):
        odds = theta[0] * np.log(p) - theta[1] * np.log1p(-p) + theta[2]
        return np.mean(np.logaddexp(0, odds) - outcome * odds)

    best = minimize(loss, [1, 1, 0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000})
    fitted = fit({"name": "beta", "target_smoothing": False}, logits, labels).parameters
    found = [fitted[name][1] for name in "abc"]
    assert loss(found) <= best.fun + 1e-10
    np.testing.assert_allclose(found, best.x, rtol=1e-3, atol=1e-3)
    assert min(fitted["a"].min(), fitted["b"].min()) >= 0


def test_beta_does_not_turn_a_score_around():
    logits, labels = random_logits(200, classes=2)
    fitted = fit("beta", -logits, labels).parameters
    assert fitted["a"].tolist() == [0, 0]
    assert fitted["b"].tolist() == [0, 0]


def test_vector_scaling_is_at_the_minimum_of_its_loss():
    logits, labels = random_logits(300, classes=4)
    calibrator = fit({"name": "vector", "ridge": 1e-3}, logits, labels)
    w = torch.tensor(calibrator.parameters["weight"], requires_grad=True)
    b = torch.tensor(calibrator.parameters["bias"], requires_grad=True)
    z = w * torch.tensor(logits) + b
    loss = torch.nn.functional.cross_entropy(z, torch.tensor(labels))
    loss = loss + 1e-3 / 2 * (((w - 1) ** 2).sum() + (b**2).sum())
    slopes = torch.autograd.grad(loss, (w, b))
    assert max(slope.abs().max().item() for slope in slopes) < 1e-6
    np.testing.assert_allclose(calibrator(logits), torch.softmax(z, dim=1).detach().numpy(), rtol=0, atol=1e-14)


def test_vector_scaling_stays_finite_when_a_class_is_missing():
    logits, _ = random_logits(100, classes=3)
    calibrator = fit("vector", logits, [0, 1] * 50)
    assert np.isfinite(calibrator(logits)).all()
    assert calibrator(logits)[:, 2].max() < 0.05


@pytest.mark.parametrize(("hidden", "parameters"), [((16,), 49), ((16, 16), 321)])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_smart_has_the_gradient_that_torch_finds(hidden, parameters, delta):
    logits, labels = random_logits(80, classes=4)
    method = Smart(hidden=hidden, delta=delta)
    layers = initial(hidden, seed=1)
    assert sum(weight.size + bias.size for weight, bias in layers) == parameters
    gap = np.sort(logits, axis=1)[:, -1] - np.sort(logits, axis=1)[:, -2]
    g = (gap - gap.mean()) / gap.std()
    correct = (logits.argmax(axis=1) == labels).astype(float)
    value, gradient = method.loss_slope(layers, g, logits - logits.max(axis=1, keepdims=True), correct)

    tensors = [torch.tensor(v, requires_grad=True) for layer in layers for v in layer]
    out = torch.tensor(g)[:, None]
    for depth in range(len(layers)):
        out = out @ tensors[2 * depth] + tensors[2 * depth + 1]
        out = torch.relu(out) if depth < len(layers) - 1 else out
    temperature = torch.nn.functional.softplus(out, threshold=100) + 0.1
    confidence = torch.softmax(torch.tensor(logits) / temperature, dim=1).max(dim=1).values
    centres = (torch.arange(15, dtype=torch.float64) + 0.5) / 15
    w = torch.softmax(-((confidence[:, None] - centres) ** 2) / (2 * 0.05**2), dim=1)
    r = (w * (confidence - torch.tensor(correct))[:, None]).sum(0) / w.sum(0)
    loss = (w.sum(0) / 80 * (torch.sqrt(r**2 + delta**2) if delta else r.abs())).sum()
    expected = torch.autograd.grad(loss, tensors)
    assert value == pytest.approx(loss.item(), abs=1e-14)
    found = [v for layer in gradient for v in layer]
    for slope, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(slope, theirs.numpy(), rtol=0, atol=1e-13)


def test_adam_takes_the_steps_of_torch():
    weight = np.array([[1.0, -2.0]])
    target = torch.tensor([[0.3, 0.5]], dtype=torch.float64)

    def step(layers):
        (w, _) = layers[0]
        return float(((w - target.numpy()) ** 2).sum()), [(2 * (w - target.numpy()), np.zeros(2))]

    best = train([(weight, np.zeros(2))], step, lr=0.05, epochs=41, patience=100)
    theta = torch.tensor(weight, requires_grad=True)
    adam = torch.optim.Adam([theta], lr=0.05)
    for _ in range(40):
        adam.zero_grad()
        ((theta - target) ** 2).sum().backward()
        adam.step()
    np.testing.assert_allclose(best[0][0], theta.detach().numpy(), rtol=1e-12)


def test_training_keeps_its_best_weights_and_stops_when_patience_ends():
    losses = iter([3.0, 1.0, 2.0, 2.0, 2.0, 0.0])
    seen = []

    def step(layers):
        seen.append(layers[0][0].copy())
        return next(losses), [(np.ones((1, 1)), np.zeros(1))]

    best = train([(np.zeros((1, 1)), np.zeros(1))], step, lr=1.0, epochs=6, patience=3)
    assert len(seen) == 5
    np.testing.assert_array_equal(best[0][0], seen[1])


def test_smart_lowers_its_loss_and_gives_each_gap_its_temperature():
    logits, labels = random_logits(500, scale=4.0)
    calibrator = fit("smart", logits, labels)
    before = cal.soft_ece(*cal.top_label(logits, labels, from_logits=True))
    after = cal.soft_ece(*cal.top_label(calibrator(logits), labels, from_logits=False))
    assert after < before / 10
    # One gap, one temperature: the log-probabilities of two such rows are one line of their logits.
    rows = np.array([[2.0, 0.0, -1.0], [7.0, 5.0, 4.0]])
    p = fit("smart", *random_logits(100, classes=3))(rows)
    np.testing.assert_allclose(p[0], p[1], rtol=1e-12)


def test_smart_is_reproducible_and_its_seed_matters():
    data = random_logits(100)
    first, again, other = (fit({"name": "smart", "epochs": 20, "seed": s}, *data) for s in (0, 0, 1))
    assert first.to_json() == again.to_json() != other.to_json()


def test_a_wrong_method_setting_or_input_is_named():
    logits, labels = random_logits(20)
    with pytest.raises(SettingError, match="no such entry in recalibration; accepted: beta, histogram"):
        fit("temprature", logits, labels)
    with pytest.raises(SettingError, match=r"method\.bins = 0"):
        fit({"name": "histogram", "bins": 0}, logits, labels)
    with pytest.raises(cal.InputError, match="one step at a time"):
        fit("isotonic", logits[None], labels)
    calibrator = fit("isotonic", logits, labels)
    with pytest.raises(cal.InputError, match="4 classes; the calibrator was fitted to 5"):
        calibrator(logits[:, :4])
    with pytest.raises(cal.InputError, match="not a saved calibrator"):
        Calibrator.from_json("{}")
    with pytest.raises(cal.InputError, match="not a saved calibrator"):
        Calibrator.from_json("T = 2")


def test_a_method_object_is_a_method():
    method = Smart(epochs=5)
    assert named(method) is method
    assert isinstance(method, Recalibration)

"""The paper's statements checked on closed forms, in float64, without training anything.

Random logits for the links between per-sample quantities, small random networks with explicit Jacobians for those
that involve sharpness, and four examples whose numbers are known: what the bounds do not say.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.calibration import ece, top_label
from analysis.chains import (
    CONFIDENCE,
    UNDERFLOW,
    Samples,
    ece_chain,
    lambda_chain,
    output_bias_bounds,
    pairs,
    storage_error,
)
from analysis.output_hessian import output_hessian, output_hessian_norm
from analysis.plugins import SettingError
from analysis.predictions import Floats
from analysis.results import Result

TOLERANCE = 1e-12
"""Largest relative excess of a lower side over its upper side, and largest gap of an equality, that rounding explains.

An ECE, which is made from confidences, is known to `chains.CONFIDENCE` only: that much is taken off first."""
SHARES = {2: 0.4, 3: 0.3, 10: 0.29, 100: 0.01}
"""Share of the cases by number of classes; few of 100, whose dense eigenproblems cost most."""
SAMPLES = 4
"""Samples in a case of random logits."""
NETWORKS = 150
_AT_ONCE = 500


@dataclass(frozen=True)
class TheoryResult(Result):
    """What each statement did on the closed forms.

    Attributes:
        checks: one row per statement: statement, kind ("inequality", "equality" or "example"), cases, worst (largest
            relative excess or gap; for an example its distance from the known number), tolerance, holds.
        seed: of the random cases.
    """

    checks: pd.DataFrame
    seed: int

    @property
    def holds(self) -> bool:
        """Whether every statement does."""
        return bool(self.checks["holds"].all())

    def summary(self) -> str:
        """How many statements hold, and the worst of them."""
        failed = self.checks[~self.checks["holds"]]
        exact = self.checks[self.checks["kind"] != "example"]
        worst = exact.sort_values("worst").iloc[-1]
        lines = [
            f"{self.checks['holds'].sum()} of {len(self.checks)} statements hold (seed {self.seed}); the largest "
            f"excess or gap is {worst['worst']:.2g}, of {worst['statement']}"
        ]
        lines += [f"  FAILED: {row.statement}: {row.worst:.3g} > {row.tolerance:g}" for row in failed.itertuples()]
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """The checks."""
        return self.checks.copy()


def verify_theory(cases: int = 100_000, seed: int = 0) -> TheoryResult:
    """Check every inequality, equality case and counterexample.

    Args:
        cases: sets of `SAMPLES` random logit vectors, of 2, 3, 10 and 100 classes, with ties and at scales from .01
            to 300.
        seed: of the random cases.

    Raises:
        SettingError: fewer than 100 cases.
    """
    if cases < 100:
        raise SettingError(f"cases = {cases}: expected 100 or more")
    random = np.random.default_rng(seed)
    tally = _Tally()
    for classes, share in SHARES.items():
        for count in _portions(max(1, round(cases * share))):
            logits, labels = random_logits(random, count, classes)
            _check_logits(tally, logits, labels)
    for _ in range(NETWORKS):
        _check_network(tally, random)
    checks = [*tally.rows(), *_examples()]
    columns = ["statement", "kind", "cases", "worst", "tolerance", "holds"]
    return TheoryResult(pd.DataFrame(checks, columns=columns), seed)


def random_logits(random: np.random.Generator, count: int, classes: int) -> tuple[Floats, np.ndarray]:
    """Logits [count, SAMPLES, K] at scales from .01 to 300, a fifth of them rounded so that they tie, and labels.

    Half of the cases have every sample labelled by its prediction, so that the interpolating regime is met.
    """
    scale = 10 ** random.uniform(-2, 2.5, (count, 1, 1))
    logits = scale * random.standard_normal((count, SAMPLES, classes))
    tied = random.random(count) < 0.2
    logits[tied] = np.round(logits[tied])
    labels = random.integers(classes, size=(count, SAMPLES))
    fitted = random.random(count) < 0.5
    labels[fitted] = logits[fitted].argmax(axis=-1)
    return logits, labels


def excess(lower: Floats, upper: Floats, allowed: Floats | float = 0.0) -> float:
    """The largest (lower - upper - allowed)/upper, at least 0; where both are finite and upper does not underflow."""
    applies = np.isfinite(lower) & np.isfinite(upper) & (upper > UNDERFLOW)
    if not applies.any():
        return 0.0
    return max(0.0, float(((lower - upper - allowed)[applies] / upper[applies]).max()))


def gauss_newton_top(jacobians: Floats, hessians: Floats) -> float:
    """lambda_max of mean_i J_i^T H_i J_i from J [n, K, d] and H [n, K, K], as a dense eigenproblem."""
    matrix = np.einsum("nkd,nkl,nle->de", jacobians, hessians, jacobians, optimize=True) / len(jacobians)
    return float(np.linalg.eigvalsh(matrix)[-1])


def two_layer(
    random: np.random.Generator, samples: int, inputs: int, hidden: int, classes: int, scale: float
) -> tuple[Floats, Floats]:
    """Logits [n, K] and explicit Jacobians [n, K, d] of z = V tanh(W x + b) + c at random weights and inputs."""
    w, b = random.standard_normal((hidden, inputs)), random.standard_normal(hidden)
    v, c = scale * random.standard_normal((classes, hidden)), scale * random.standard_normal(classes)
    x = random.standard_normal((samples, inputs))
    a = np.tanh(x @ w.T + b)
    backward = v[None] * (1 - a**2)[:, None, :]
    of_w = np.einsum("nkh,ni->nkhi", backward, x).reshape(samples, classes, -1)
    identity = np.broadcast_to(np.eye(classes), (samples, classes, classes))
    of_v = np.einsum("nkl,nh->nklh", identity, a).reshape(samples, classes, -1)
    return a @ v.T + c, np.concatenate([of_w, backward, of_v, identity], axis=2)


class _Tally:
    """The worst of each statement so far."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, statement: str, kind: str, cases: int, worst: float) -> None:
        """One more batch of cases."""
        before, highest = self._found.get((statement, kind), (0, 0.0))
        self._found[statement, kind] = before + cases, max(highest, worst)

    def links(self, terms: dict[str, Floats], errors: dict[str, Floats]) -> None:
        """The links between terms that may be off by these errors."""
        for low, high in pairs(terms):
            lower, upper = np.atleast_1d(terms[low]), np.atleast_1d(terms[high])
            allowed = np.asarray(errors.get(low, 0.0)) + errors.get(high, 0.0)
            applies = int((~np.isnan(lower) & ~np.isnan(upper)).sum())
            self.add(f"{low} <= {high}", "inequality", applies, excess(lower, upper, allowed))

    def equal(self, statement: str, one: Floats, other: Floats, allowed: float = 0.0) -> None:
        """An equality up to an absolute error."""
        worst = max(excess(one, other, allowed), excess(other, one, allowed))
        self.add(statement, "equality", one.size, worst)

    def rows(self) -> Iterator[tuple[str, str, int, float, float, bool]]:
        """Rows of the table of checks."""
        for (statement, kind), (cases, worst) in self._found.items():
            yield statement, kind, cases, worst, TOLERANCE, worst <= TOLERANCE


def _portions(cases: int) -> Iterator[int]:
    for start in range(0, cases, _AT_ONCE):
        yield min(_AT_ONCE, cases - start)


def _check_logits(tally: _Tally, logits: Floats, labels: np.ndarray) -> None:
    samples = Samples.of_logits(logits, labels)
    chain = ece_chain(samples)
    tally.links(chain, storage_error(samples))
    interpolating = chain["gamma"] > 0
    tally.equal(
        "all correct: ece = mean_one_minus_p_true",
        chain["ece"][interpolating],
        chain["mean_one_minus_p_true"][interpolating],
        2 * CONFIDENCE,
    )
    uncertainty = np.exp(samples.log_one_minus_confidence)
    one_minus_p_true = np.exp(samples.log_one_minus_p_true)
    gap = np.where(samples.correct, uncertainty, 1 - uncertainty)
    tally.add("L2: |c - phat| <= 1 - p_y", "inequality", gap.size, excess(gap, one_minus_p_true, CONFIDENCE))
    with np.errstate(over="ignore"):
        tail = np.exp(-samples.margin)
        others = samples.classes - 1
        upper = others * tail
        paper = 1 / (others + np.exp(samples.margin))
    tally.add("L3: 1 - p_y <= (K-1) exp(-m)", "inequality", gap.size, excess(one_minus_p_true, upper))
    tally.add("L3: exp(-m)/(1 + (K-1)exp(-m)) <= 1 - p_y", "inequality", gap.size, excess(paper, one_minus_p_true))
    positive = np.where(samples.margin >= 0, tail, np.nan)
    tally.add("L3: exp(-m)/K <= 1 - p_y", "inequality", gap.size, excess(positive / samples.classes, one_minus_p_true))
    _check_hessian(tally, logits, uncertainty)
    if samples.classes == 2:
        sigmoid = np.exp(-np.logaddexp(0.0, samples.margin))
        tally.equal("K = 2: 1 - p_y = sigmoid(-m)", one_minus_p_true, sigmoid)


def _check_hessian(tally: _Tally, logits: Floats, uncertainty: Floats) -> None:
    norm, classes = output_hessian_norm(logits), logits.shape[-1]
    gini = uncertainty * (1 - uncertainty)
    top = np.exp(np.log1p(-uncertainty))
    tally.add("L4: lambda(H_z) <= 2 phat (1-phat)", "inequality", norm.size, excess(norm, 2 * gini))
    tally.add("L4: lambda(H_z) <= phat", "inequality", norm.size, excess(norm, top))
    tally.add(
        "K/(K-1) phat(1-phat) <= lambda(H_z)", "inequality", norm.size, excess(classes / (classes - 1) * gini, norm)
    )
    if classes == 2:
        tally.equal("K = 2: lambda(H_z) = 2 phat (1-phat)", norm, 2 * gini)


def _check_network(tally: _Tally, random: np.random.Generator) -> None:
    classes, n = int(random.choice([2, 3, 10])), int(random.integers(1, 12))
    scale = 10 ** random.uniform(-1, 1)
    logits, jacobians = two_layer(random, n, int(random.integers(1, 6)), int(random.integers(1, 8)), classes, scale)
    labels = random.integers(classes, size=n)
    if random.random() < 0.5:
        labels = logits.argmax(axis=-1)
    lambda_max = gauss_newton_top(jacobians, output_hessian(logits))
    norms = np.linalg.norm(jacobians, ord=2, axis=(1, 2))
    samples = Samples.of_logits(logits, labels)
    chain = lambda_chain(samples, lambda_max, norms, output_hessian_norm(logits)) | output_bias_bounds(logits)
    tally.links(chain, storage_error(samples, norms))
    calibration = ece_chain(samples)
    if calibration["gamma"] > 0:
        lower, upper = calibration["ece"] / (classes - 1), 2 * norms.max() ** 2 * calibration["ece"]
        tally.add(
            "all correct, output bias: ece/(K-1) <= lambda_max", "inequality", 1, excess(lower, chain["lambda_max"])
        )
        tally.add("all correct: lambda_max <= 2 C_J^2 ece", "inequality", 1, excess(chain["lambda_max"], upper))


def _examples() -> Iterator[tuple[str, str, int, float, float, bool]]:
    def row(statement: str, distance: float, tolerance: float) -> tuple[str, str, int, float, float, bool]:
        return statement, "example", 1, distance, tolerance, distance <= tolerance

    calibration, sharpness = saturating_example(np.array([10.0, 20.0]))
    limit = 1 / (1 + np.exp(10.0))
    yield row("z = 5 tanh(theta x): ECE stays at sigmoid(-10) = 4.5e-5", abs(calibration[-1] / limit - 1), 1e-12)
    yield row("z = 5 tanh(theta x): lambda_max falls to 0 (no lower bound without a bias)", sharpness[-1], 1e-35)
    before, after = label_swap()
    yield row(
        "label swap: ECE .0007 becomes .9993 with the same lambda_max",
        max(abs(before - 7e-4), abs(after - 0.9993)),
        1e-12,
    )
    for classes in (2, 10, 100):
        distance = abs(mse_confidence(classes) - np.e / (np.e + classes - 1))
        yield row(f"MSE at z = one-hot, K = {classes}: confidence e/(e+K-1)", distance, 1e-12)


def saturating_example(theta: Floats) -> tuple[Floats, Floats]:
    """ECE and lambda_max of the logits (z, -z), z = 5 tanh(theta x), on x = 1 and -1, labelled right; by theta > 0.

    There is no bias, so nothing holds lambda_max up: it falls as exp(-4 theta) while the ECE stays at sigmoid(-10).
    """
    calibration, sharpness = [], []
    x = np.array([1.0, -1.0])
    for value in theta:
        z = 5 * np.tanh(value * x)
        logits = np.stack([z, -z], axis=-1)
        # 1 - tanh^2 without cancellation.
        slope = 5 * x * 4 * np.exp(-2 * value) / (1 + np.exp(-2 * value)) ** 2
        jacobians = np.stack([slope, -slope], axis=-1)[..., None]
        confidence_chain = ece_chain(Samples.of_logits(logits, (x < 0).astype(int)))
        calibration.append(float(confidence_chain["ece"]))
        sharpness.append(gauss_newton_top(jacobians, output_hessian(logits)))
    return np.array(calibration), np.array(sharpness)


def label_swap() -> tuple[float, float]:
    """ECE of a binary predictor of confidence .9993 under labels all right, and all wrong.

    H_GN has no label in it, so lambda_max is the same number for both: sharpness alone cannot tell calibration.
    """
    margin = np.log(0.9993 / 0.0007)
    logits = np.array([[margin, 0.0], [0.0, margin]])
    right = np.array([0, 1])
    before = ece(*top_label(logits, right, from_logits=True))
    return float(before), float(ece(*top_label(logits, 1 - right, from_logits=True)))


def mse_confidence(classes: int) -> float:
    """Confidence of softmax at the optimum of MSE on logits, z = one-hot: bounded away from 1 for ever."""
    confidence, _ = top_label(np.eye(classes), np.arange(classes), from_logits=True)
    return float(confidence.mean())

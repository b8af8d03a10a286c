"""Samples for the calibration tests, and slow twins: one loop, one formula, float64."""

import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st

AWKWARD = [0.0, 0.1, 0.2, 0.3, 1 / 3, 0.4, 0.6, 0.7, 0.8, 14 / 15, 1.0, 1.0 - 2.0**-53, 5e-324]


@st.composite
def samples(draw: Any, least: int = 1, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Confidence with edges, ends and ties among it, and correctness."""
    n = draw(st.integers(least, most))
    score = st.one_of(st.sampled_from(AWKWARD), st.floats(0, 1))
    confidence = draw(st.lists(score, min_size=n, max_size=n))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(confidence), np.array(correct)


@st.composite
def classified(draw: Any, least: int = 1, most: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Logits [n, K] with ties and saturated rows among them, and labels."""
    n, classes = draw(st.integers(least, most)), draw(st.integers(2, 5))
    logit = st.one_of(st.sampled_from([0.0, 1.0, -300.0, 300.0]), st.floats(-20, 20))
    logits = draw(st.lists(logit, min_size=n * classes, max_size=n * classes))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    return np.array(logits).reshape(n, classes), np.array(labels)


def random_samples(n: int, seed: int = 0, shape: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.beta(4, 1.5, (*shape, n))
    return confidence, generator.uniform(size=confidence.shape) < confidence**1.5


def random_logits(n: int, classes: int = 5, seed: int = 0, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are ``scale`` times those of the law that drew the labels."""
    generator = np.random.default_rng(seed)
    z = 1.5 * generator.normal(size=(n, classes))
    return scale * z, (z + generator.gumbel(size=z.shape)).argmax(axis=1)


def bins_of(confidence: np.ndarray, bins: int, closed: str) -> list[int]:
    """The equal-width bin of each score, edge by edge."""
    found = []
    for score in confidence:
        inner = [confidence.dtype.type(k / bins) for k in range(1, bins)]
        found.append(sum(score > edge if closed == "right" else score >= edge for edge in inner))
    return found


def parts_of(confidence: np.ndarray, bins: int, closed: str) -> list[int]:
    """The equal-mass bin of each score by numpy.array_split; a tie goes to its first member's, or last."""
    order = np.argsort(confidence, kind="stable")
    part = np.empty(len(order), dtype=int)
    for b, members in enumerate(np.array_split(order, bins)):
        part[members] = b
    choose = min if closed == "right" else max
    return [choose(part[confidence == score]) for score in confidence]


def ece(confidence: np.ndarray, correct: np.ndarray, index: list[int], norm: str, debias: bool = False) -> float:
    n, total, largest = len(confidence), 0.0, 0.0
    for b in set(index):
        inside = np.array(index) == b
        size, accuracy = inside.sum(), correct[inside].mean()
        gap = accuracy - confidence[inside].mean(dtype=np.float64)
        largest = max(largest, abs(gap))
        if norm == "l1":
            total += size / n * abs(gap)
        elif not debias:
            total += size / n * gap**2
        elif size > 1:
            total += size / n * (gap**2 - accuracy * (1 - accuracy) / (size - 1))
    return {"l1": total, "l2": max(total, 0) ** 0.5, "max": largest}[norm]


def kernel_form(scores: np.ndarray, weights: np.ndarray, width: float, diagonal: bool = True) -> float:
    kernel = np.exp(-np.abs(scores[:, None] - scores[None, :]) / width)
    if not diagonal:
        np.fill_diagonal(kernel, 0.0)
    return float(weights @ kernel @ weights)


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def skce(p: np.ndarray, y: np.ndarray, nu: float, unbiased: bool) -> float:
    n, total = len(p), 0.0
    onehot = np.eye(p.shape[1])[y]
    for i, j in itertools.product(range(n), repeat=2):
        if not (unbiased and i == j):
            total += np.exp(-np.linalg.norm(p[i] - p[j]) / nu) * ((onehot[i] - p[i]) @ (onehot[j] - p[j]))
    return total / (n * (n - 1) if unbiased else n * n)


def smoothed(confidence: np.ndarray, correct: np.ndarray, s: float, points: int = 20001) -> float:
    """Integral of |mean residual times reflected Gaussian|, by the trapezoid and the images of each score."""
    t = np.linspace(0, 1, points)
    curve = np.zeros_like(t)
    for c, a in zip(confidence, correct, strict=True):
        for image in [2 * k + sign * c for k in range(-8, 9) for sign in (1, -1)]:
            curve += (a - c) * np.exp(-((t - image) ** 2) / (2 * s**2)) / (s * np.sqrt(2 * np.pi))
    return float(np.trapezoid(np.abs(curve) / len(confidence), t))


def aurc(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Mean over every order that sorts the confidence, of the mean risk."""
    areas = []
    for order in itertools.permutations(range(len(confidence))):
        if all(confidence[i] >= confidence[j] for i, j in itertools.pairwise(order)):
            errors = [1 - correct[i] for i in order]
            areas.append(np.mean([np.mean(errors[: k + 1]) for k in range(len(errors))]))
    return float(np.mean(areas))


def soft_ece(confidence: np.ndarray, correct: np.ndarray, bins: int, sigma: float, delta: float) -> float:
    centres = [(m + 0.5) / bins for m in range(bins)]
    w = np.array([[np.exp(-((c - mu) ** 2) / (2 * sigma**2)) for mu in centres] for c in confidence])
    w /= w.sum(axis=1, keepdims=True)
    total = 0.0
    for m in range(bins):
        weight = w[:, m].sum()
        gap = (w[:, m] * (confidence - correct)).sum() / weight
        total += weight / len(confidence) * np.sqrt(gap**2 + delta**2)
    return total

"""Seeded choices: class-stratified subsets of exact size, and training labels redrawn at random."""

import numpy as np


def allocate(size: int, counts: np.ndarray) -> np.ndarray:
    """Share ``size`` places among classes in proportion to ``counts``, by largest remainder.

    Args:
        size: places to give, at most ``counts.sum()``.
        counts: samples of each class, integers [K].

    Returns:
        Integers [K] that sum to ``size``; each is less than one away from its exact share, and at most its
        class's count. Of equal remainders the lower class is served first.
    """
    total = int(counts.sum())
    places, remainders = np.divmod(size * counts, total)
    left = size - int(places.sum())
    places[np.argsort(-remainders, kind="stable")[:left]] += 1
    return places


def stratified(labels: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """Row numbers, ascending, of ``size`` random rows in which each class has its share in ``labels``.

    A class's rows are the first ones of a permutation that depends on ``key`` and the class alone, so that a
    larger subset contains a smaller one (up to the rounding of the shares).

    Args:
        labels: classes of all rows, integers [n], none negative.
        size: rows to choose, 0 <= size <= n.
        key: seeds of the random choice.
    """
    if size == len(labels):
        return np.arange(size)
    places = allocate(size, np.bincount(labels))
    chosen = [
        np.random.default_rng([*key, label]).permutation(np.flatnonzero(labels == label))[: places[label]]
        for label in range(len(places))
    ]
    return np.sort(np.concatenate(chosen))


def redraw(labels: np.ndarray, fraction: float, classes: int, key: tuple[int, ...]) -> np.ndarray:
    """A copy of ``labels`` with ``round(fraction * n)`` random entries drawn uniformly over all classes.

    A new label may equal the old one, so that about ``fraction * (K - 1) / K`` of the labels change.
    """
    generator = np.random.default_rng(key)
    noisy = labels.copy()
    chosen = generator.permutation(len(labels))[: round(fraction * len(labels))]
    noisy[chosen] = generator.integers(classes, size=len(chosen))
    return noisy

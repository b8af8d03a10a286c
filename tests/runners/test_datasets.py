"""Datasets: choice of subsets, standardisation, label noise, and the digits."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from analysis.plugins import SettingError
from runners.datasets import DATASETS
from runners.datasets._subsets import allocate, redraw, stratified
from tests.runners.dataset_helpers import load, pixels


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(sum), st.data())
def test_allocate_is_the_largest_remainder_rule(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, sum(counts)))
    exact = [Fraction(size * count, sum(counts)) for count in counts]
    expected = [int(share) for share in exact]
    while sum(expected) < size:
        hungriest = max(range(len(counts)), key=lambda k: (exact[k] - expected[k], -k))
        expected[hungriest] += 1
    got = allocate(size, np.array(counts))
    assert got.tolist() == expected
    assert all(places <= count for places, count in zip(got, counts, strict=True))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data(), st.integers(0, 5))
def test_stratified_has_exact_size_and_shares(labels: list[int], data: st.DataObject, seed: int) -> None:
    y = np.array(labels)
    size = data.draw(st.integers(0, len(y)))
    rows = stratified(y, size, (seed,))
    assert len(rows) == size == len(set(rows.tolist()))
    assert np.all(np.diff(rows) > 0)
    for label, count in Counter(labels).items():
        assert abs(np.sum(y[rows] == label) - size * count / len(y)) < 1
    np.testing.assert_array_equal(rows, stratified(y, size, (seed,)))


def test_a_larger_subset_contains_a_smaller_one_and_a_seed_changes_both() -> None:
    y = np.arange(1000) % 10
    small, large = stratified(y, 100, (3,)), stratified(y, 400, (3,))
    assert set(small) < set(large)
    assert set(small) != set(stratified(y, 100, (4,)))


def test_redraw_touches_the_asked_number_of_labels_and_is_uniform() -> None:
    y = np.zeros(20_000, dtype=np.int64)
    noisy = redraw(y, 0.5, 4, (0,))
    counts = np.bincount(noisy, minlength=4)
    # 10,000 uniform draws over 4 classes: 2,500 each, standard deviation 43.
    assert np.all(np.abs(counts[1:] - 2500) < 5 * 43)
    assert counts[0] == 20_000 - counts[1:].sum()
    assert np.all(y == 0)
    assert np.sum(redraw(np.full(10, 7), 0.25, 2, (0,)) != 7) == 2  # round(2.5) is 2; no draw can give 7 back


# The base, on scikit-learn's digits


def test_digits_are_scikit_learns_split_in_three_parts() -> None:
    data = load("digits", train_size=500, validation_size=100)
    x, y = load_digits(return_X_y=True)
    assert {name: len(split.y) for name, split in data.splits.items()} == {
        "train": 500,
        "validation": 100,
        "test": 599,
    }
    assert (data.classes, data.input_shape, data.pixel_max) == (10, (1, 8, 8), 16.0)
    originals = Counter((row.tobytes(), label) for row, label in zip(x, y, strict=True))
    used = Counter(
        (np.round(row).reshape(-1).tobytes(), int(label))
        for split in data.splits
        for row, label in zip(pixels(data, split), data.splits[split].y, strict=True)
    )
    assert used.total() == 1199
    assert used <= originals  # each sample is one of scikit-learn's, with its label, and none is used twice
    assert set(data.splits["train"].rows).isdisjoint(data.splits["validation"].rows)


def test_all_digits_are_used_by_default() -> None:
    data = load("digits")
    x, _ = load_digits(return_X_y=True)
    together = np.concatenate([pixels(data, "train"), pixels(data, "test")]).round().reshape(1797, 64)
    assert Counter(map(bytes, together.astype(np.uint8))) == Counter(map(bytes, x.astype(np.uint8)))
    share = np.bincount(data.splits["test"].y.numpy()) / np.bincount(load_digits().target)
    np.testing.assert_allclose(share, 1 / 3, atol=1 / 170)


def test_training_inputs_are_standardised_and_bounds_are_those_of_pixels() -> None:
    data = load("digits", train_size=300)
    train = data.splits["train"].x.double()
    assert train.mean().abs() < 1e-6
    assert abs(train.std(correction=0) - 1) < 1e-6
    np.testing.assert_allclose(float(train.min()), float(data.lowest), atol=1e-6)  # digits do use 0 and 16
    np.testing.assert_allclose(float(train.max()), float(data.highest), atol=1e-6)
    moved = data.splits["test"].x + 0.25 / data.pixel_std
    np.testing.assert_allclose((moved * data.std + data.mean).numpy(), pixels(data, "test") + 4, atol=1e-5)


def test_validation_and_test_do_not_depend_on_the_training_size() -> None:
    small, large = (load("digits", train_size=n, validation_size=90, test_size=100) for n in (50, 400))
    for split in ("validation", "test"):
        np.testing.assert_array_equal(small.splits[split].rows, large.splits[split].rows)
    assert set(small.splits["train"].rows) < set(large.splits["train"].rows)


def test_label_noise_is_on_training_labels_only() -> None:
    clean = load("digits", validation_size=100)
    noisy = load("digits", validation_size=100, label_noise=0.2)
    for split in clean.splits:
        assert torch.equal(clean.splits[split].x, noisy.splits[split].x)
    assert torch.equal(clean.splits["validation"].y, noisy.splits["validation"].y)
    assert torch.equal(clean.splits["test"].y, noisy.splits["test"].y)
    changed = int((clean.splits["train"].y != noisy.splits["train"].y).sum())
    redrawn = round(0.2 * 1098)
    assert redrawn * 0.8 < changed <= redrawn  # 0.9 expected, standard deviation 0.02
    assert noisy.label == "digits (scikit-learn), label noise 0.2"
    assert noisy.fingerprint != clean.fingerprint


def test_the_seed_moves_subsets_but_not_the_digits_test_set() -> None:
    a, b = (load("digits", train_size=100, seed=seed) for seed in (0, 1))
    assert set(a.splits["train"].rows) != set(b.splits["train"].rows)
    assert torch.allclose(
        torch.tensor(pixels(a, "test")), torch.tensor(pixels(b, "test")), atol=1e-4
    )  # the same samples, standardised by other subsets
    assert a.fingerprint == load("digits", train_size=100, seed=0).fingerprint != b.fingerprint


def test_a_training_subset_may_be_smaller_than_the_number_of_classes() -> None:
    data = load("digits", train_size=3)
    assert len(set(data.splits["train"].y.tolist())) == 3
    assert data.classes == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_size": 1199}, "dataset.train_size = 1199: there are 1198"),
        ({"train_size": 1100, "validation_size": 99}, "there are 1198, 99 of them for validation"),
        ({"validation_size": 1198}, "dataset.validation_size = 1198: it is taken from 1198"),
        ({"test_size": 600}, "dataset.test_size = 600: there are 599"),
        ({"train_size": 0}, "dataset.train_size = 0: "),
        ({"label_noise": 1.5}, "dataset.label_noise = 1.5: "),
        ({"train_size": "all"}, "dataset.train_size = 'all': "),
        ({"size": 3}, "dataset.size = 3: unknown setting; accepted: train_size, "),
    ],
)
def test_sizes_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as failure:
        load("digits", **settings)
    assert message in str(failure.value)


def test_data_moves_and_describes_itself() -> None:
    data = load("digits", train_size=20)
    double = data.to("cpu", torch.float64)
    assert double.splits["train"].x.dtype == double.lowest.dtype == double.pixel_std.dtype == torch.float64
    assert double.splits["train"].y.dtype == torch.int64
    table = data.table()
    assert (table["n_train"], table["n_test"], table["classes"]) == (20, 599, 10)
    assert table["mean"] == pytest.approx([pixels(data, "train").mean()])


def test_the_folder_is_the_list() -> None:
    names = {"cifar10", "cifar100", "digits", "fashion_mnist", "mnist", "npz", "parquet", "svhn"}
    assert set(DATASETS.names()) == names
    assert all(DATASETS.get(name).name == name for name in names)

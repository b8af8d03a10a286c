"""The engine against curvlinops, and the benchmark's own peers against dense matrices and JAX."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from curvlinops import GGNLinearOperator
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from runners.curvature import GaussNewton, SharpnessTracker
from runners.curvature import bench as curvature_bench
from runners.curvature.bench import compare, render
from runners.losses import LOSSES
from runners.models import MODELS
from runners.models.mlp import Mlp
from tests.bench.bench_curvature_hardware import StackedPerceptrons
from tests.bench.bench_curvature_peers import HessianTruth, gauss_newton_truth, trail
from tests.bench.curvature_trackers import (
    Arpack,
    EossCheckout,
    Method,
    Ours,
    Point,
    centralflows,
    double_backward,
    eoss,
    forward_over_reverse,
    gauss_newton,
    lobpcg,
)
from tests.oracles_curvature import dense_gauss_newton, dense_loss_hessian


def test_lambda_max_of_the_cifar_mlp_is_that_of_curvlinops():
    torch.manual_seed(0)
    model = Mlp().build((3, 32, 32), 10)
    x, y = torch.randn(200, 3, 32, 32), torch.randint(10, (200,))
    operator = GGNLinearOperator(
        model, torch.nn.CrossEntropyLoss(), [p for p in model.parameters()], [(x, y)], check_deterministic=False
    )
    expected = eigsh(operator.to_scipy(), k=1, tol=1e-5, return_eigenvectors=False)[0]
    values, _, _ = GaussNewton(model, x).top(tol=1e-4)
    np.testing.assert_allclose(float(values[0]), expected, rtol=1e-4)


def small(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A small perceptron in float64, inputs and labels."""
    torch.manual_seed(seed)
    model = Mlp(hidden=(6, 5)).build((8,), 3).double()
    return model, torch.randn(20, 8, dtype=torch.float64), torch.randint(3, (20,))


# Iterations that jax.experimental.sparse.linalg.lobpcg_standard (JAX 0.10.2, float32, m=100) made on `planted(gap)`,
# with its tol set to tolerance / (10 d), by (gap, tolerance).
JAX_ITERATIONS = {
    (0.02, 5e-3): 3,
    (0.02, 6.5e-4): 6,
    (0.02, 2e-5): 8,
    (0.1, 5e-3): 3,
    (0.1, 6.5e-4): 6,
    (0.1, 2e-5): 7,
    (0.3, 5e-3): 3,
    (0.3, 6.5e-4): 5,
    (0.3, 2e-5): 7,
}


def planted(gap: float) -> tuple[Tensor, Tensor]:
    """The diagonal of a matrix with eigenvalues 40, 40 (1 - gap), 20 and a bulk below 10; a vector near the first."""
    bulk = 10 * torch.linspace(0, 1, 398)[:-1] ** 4
    diagonal = torch.cat([torch.tensor([40.0]), bulk, torch.tensor([20.0, 40 * (1 - gap)])])
    start = 0.1 * torch.cos(torch.arange(len(diagonal)) ** 2 * 0.37)
    start[0] = 1
    return diagonal, start


@pytest.mark.parametrize(("gap", "tolerance"), JAX_ITERATIONS)
def test_lobpcg_iterates_as_often_as_the_library_it_stands_for(gap: float, tolerance: float) -> None:
    diagonal, start = planted(gap)

    def product(columns: Tensor) -> Tensor:
        return diagonal[:, None] * columns

    found = lobpcg(product, start, tolerance, keep_images=False)
    iterations = JAX_ITERATIONS[gap, tolerance]
    # One product to begin with; three directions and the new vector in each iteration.
    assert found.products == 1 + 4 * iterations
    # With kept images two directions and the new vector, but in the first iteration one direction.
    kept = lobpcg(product, start, tolerance, keep_images=True)
    assert kept.products == 3 * iterations
    for one in (found, kept):
        residual = (diagonal * one.vector - one.value * one.vector).norm()
        assert residual <= 1.01 * tolerance * 2 * 40
        assert one.value == pytest.approx(40, rel=tolerance)


def test_a_search_that_starts_at_the_solution_ends_after_one_iteration() -> None:
    diagonal, _ = planted(0.1)
    found = lobpcg(lambda columns: diagonal[:, None] * columns, torch.eye(400)[0], 1e-3, keep_images=True)
    assert (found.value, found.products) == (pytest.approx(40), 3)


def test_peers_products_are_those_of_dense_matrices() -> None:
    model, x, y = small()
    _, hessian = dense_loss_hessian(model, x, y, LOSSES.build({"name": "ce"}, "loss"))
    point = Point.of(model, x, y)
    columns = torch.randn(len(hessian), 3, dtype=torch.float64)
    for product in (double_backward(point), forward_over_reverse(point)):
        assert torch.allclose(product(columns), hessian @ columns, atol=1e-10)
    dense = dense_gauss_newton(model, x, "ce")
    assert torch.allclose(gauss_newton(point)(columns), dense @ columns, atol=1e-10)
    assert HessianTruth().at(model, x, y) == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-5)
    assert gauss_newton_truth(model, x, 0) == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-6)


def test_a_trail_compares_every_method_with_its_own_matrix() -> None:
    model, x, y = small()
    model, x = model.float(), x.float()
    methods = {
        "ours": Method(Ours(), "G"),
        "eigsh": Method(Arpack(6), "G"),
        "eoss": Method(eoss(), "H"),
        "centralflows": Method(centralflows(gauss_newton), "G"),
        "wrong": Method(eoss(), "G"),
    }
    rows = trail(model, x, y, methods, 3).splitlines()[2:]
    errors = {row.split()[0]: float(row.split()[-2]) for row in rows}
    assert set(errors) == set(methods)
    assert errors["wrong"] > 1e-2
    assert max(error for name, error in errors.items() if name != "wrong") < 2e-3


EOSS_INTERFACE = """
from types import SimpleNamespace

import torch

from tests.bench.curvature_trackers import double_backward


class EigenvectorCache:
    vector = None


def create_hessian_vector_product(loss, net):
    return double_backward(SimpleNamespace(loss=loss, model=net))


def compute_eigenvalues(loss, net, k=1, eigenvector_cache=None):
    product = create_hessian_vector_product(loss, net)
    if eigenvector_cache.vector is None:
        eye = torch.eye(sum(p.numel() for p in net.parameters()), dtype=loss.dtype)
        eigenvector_cache.vector = torch.linalg.eigh(product(eye)).eigenvectors[:, -1:]
    known = eigenvector_cache.vector
    return (known * product(known)).sum()
"""


def test_a_checkout_of_eoss_is_measured_with_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "measure.py").write_text(EOSS_INTERFACE)
    monkeypatch.syspath_prepend(tmp_path)
    model, x, y = small()
    _, hessian = dense_loss_hessian(model, x, y, LOSSES.build({"name": "ce"}, "loss"))
    try:
        tracker = EossCheckout(tmp_path)
        # The second search finds the first one's vector in the cache.
        for expected in (len(hessian) + 1, 1):
            value, products = tracker.measure(Point.of(model, x, y))
            assert value == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-9)
            assert products == expected
    finally:
        for name in ("utils.measure", "utils"):
            sys.modules.pop(name, None)


def test_stacked_products_are_those_of_each_network() -> None:
    networks = [small(seed)[0] for seed in range(3)]
    x = small()[1]
    stacked = StackedPerceptrons(networks, x)
    dense = [dense_gauss_newton(model, x, "ce") for model in networks]
    vectors = torch.randn(3, len(dense[0]), dtype=torch.float64)
    expected = torch.stack([matrix @ v for matrix, v in zip(dense, vectors, strict=True)])
    assert torch.allclose(stacked.matvec(vectors), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_a_tracker_in_chunks_gives_the_same_value_to_1e_6(name: str) -> None:
    torch.manual_seed(0)
    table = {"name": "resnet20", "width": 2} if name == "resnet20" else {"name": "mlp", "hidden": (10,)}
    model = MODELS.build(table, "model").build((3, 8, 8), 4).eval()
    x = torch.randn(24, 3, 8, 8)
    # Searches stop at a residual, whose square bounds the value's error: a tight one shows what the chunks do.
    whole = SharpnessTracker(tol=1e-4).update(model, x, "ce")
    parts = SharpnessTracker(tol=1e-4).update(model, x, "ce", chunk=7)
    assert parts.value == pytest.approx(whole.value, rel=1e-6)


def test_a_peer_that_fails_is_named_and_the_table_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setting: object, before: object) -> tuple[float, float, None]:
        if before is None:
            return 1.0, 1, "state"
        raise RuntimeError("no luck\nat all")

    ours = next(m for m in curvature_bench.METHODS if m.package is None)
    make = type(ours)
    methods = (
        ours,
        make("warm trouble", broken, "torch"),
        make("cold trouble", lambda setting, before: [][0], "torch"),
        make("not here", broken, "no_such_package"),
    )
    monkeypatch.setattr(curvature_bench, "METHODS", methods)
    model, x, y = small()
    rows = compare(model, x, y, LOSSES.build({"name": "ce"}, "loss"))
    by_name = {(row.method, row.start): row for row in rows}
    assert by_name["warm trouble", "cold"].products == 1
    assert by_name["warm trouble", "warm"].failure == "RuntimeError: no luck\nat all"
    assert by_name["cold trouble", "cold"].failure.startswith("IndexError")
    assert ("cold trouble", "warm") not in by_name
    assert by_name["not here", "cold"].absent
    for start in ("cold", "warm"):
        row = by_name[ours.name, start]
        assert row.error < 1e-4
        assert row.seconds > 0
    text = render(rows)
    assert "RuntimeError: no luck\n" in text
    assert "not installed" in text

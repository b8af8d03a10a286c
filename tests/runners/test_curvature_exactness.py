"""The curvature engine against dense float64 matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from runners.curvature import (
    GaussNewton,
    SharpnessTracker,
    batch_sharpness,
    hessian_product,
    hessian_top,
    jacobian_norms,
    run_forward,
)
from runners.curvature.forward import perceptron_stages
from runners.losses import LOSSES
from runners.models import MODELS
from tests.oracles_curvature import dense_gauss_newton, dense_jacobians, dense_loss_hessian

N, K = 7, 3
NETWORKS = ("tanh", "relu", "gelu", "softplus", "no_bias", "deep", "linear", "two_linears", "cnn", "residual")


class Residual(nn.Module):
    """A block with a shortcut and batch norm whose running averages are not the default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, K)
        self.norm = nn.BatchNorm1d(5)
        self.norm.running_mean += 0.3
        self.norm.running_var *= 2.0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h + torch.tanh(self.norm(self.second(h))))


def network(name: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A small float64 network in evaluation mode, inputs and labels."""
    torch.manual_seed(seed)
    x = torch.randn(N, 5)
    if name == "cnn":
        x = torch.randn(N, 1, 4, 4)
        model = MODELS.build({"name": "cnn", "channels": (2,), "activation": "tanh"}, "m").build((1, 4, 4), K)
    elif name == "residual":
        model = Residual()
    elif name == "two_linears":
        model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Dropout(0.5), nn.SiLU(), nn.Linear(4, K))
    else:
        hidden = {"linear": (), "deep": (4, 5, 4)}.get(name, (6, 4))
        activation = name if name in ("tanh", "relu", "gelu", "softplus") else "sigmoid"
        table = {"name": "mlp", "hidden": hidden, "activation": activation, "bias": name != "no_bias"}
        model = MODELS.build(table, "m").build((5,), K)
    return model.double().eval(), x.double(), torch.randint(0, K, (N,))


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("name", NETWORKS)
def test_products_trace_and_top_pairs_are_those_of_the_dense_matrix(name: str, loss: str) -> None:
    model, x, _ = network(name)
    dense = dense_gauss_newton(model, x, loss)
    matrix = GaussNewton(model, x, loss)
    assert (matrix.perceptron is None) == (name in ("cnn", "residual"))
    vectors = torch.randn(matrix.size, 5, dtype=torch.float64)
    scale = dense.norm()
    assert (matrix.matmat(vectors) - dense @ vectors).abs().max() < 1e-12 * scale
    assert (matrix.matvec(vectors[:, 0]) - dense @ vectors[:, 0]).abs().max() < 1e-12 * scale
    assert torch.allclose(matrix.quadratic(vectors), (vectors * (dense @ vectors)).sum(0), rtol=1e-10)
    assert matrix.trace() == pytest.approx(float(dense.trace()), rel=1e-12)
    values, found, residuals = matrix.top(3, tol=1e-10)
    assert torch.allclose(values, torch.linalg.eigvalsh(dense).flip(0)[:3], rtol=1e-8)
    assert (residuals <= 1e-10 * values[0]).all()
    assert torch.allclose((dense @ found - found * values).norm(dim=0), residuals, atol=1e-12 * float(scale))
    assert torch.allclose(found.T @ found, torch.eye(3, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_jacobian_norms_are_those_of_explicit_jacobians(name: str) -> None:
    model, x, _ = network(name)
    explicit = torch.linalg.matrix_norm(dense_jacobians(model, x), ord=2)
    assert torch.allclose(jacobian_norms(model, x), explicit, rtol=1e-10)
    assert torch.allclose(jacobian_norms(model, x, chunk=2), explicit, rtol=1e-10)
    assert torch.allclose(jacobian_norms(model, x, forward=run_forward(model, x)), explicit, rtol=1e-10)


@pytest.mark.parametrize("name", ["tanh", "cnn", "residual"])
def test_chunks_give_the_same_value(name: str) -> None:
    model, x, y = network(name)
    vector = torch.randn(GaussNewton(model, x).size, dtype=torch.float64)
    for loss in ("ce", "mse"):
        whole = GaussNewton(model, x, loss)
        for size in (1, 3):
            parts = GaussNewton(model, x, loss, chunk=size)
            assert torch.allclose(parts.matvec(vector), whole.matvec(vector), atol=1e-12)
            assert parts.trace() == pytest.approx(whole.trace(), rel=1e-12)
    loss = LOSSES.build({"name": "ce"}, "loss")
    assert torch.allclose(
        hessian_product(model, x, y, loss, vector),
        hessian_product(model, x, y, loss, vector, chunk=3),
        atol=1e-12,
    )


@pytest.mark.parametrize("loss_name", ["ce", "mse", "focal"])
@pytest.mark.parametrize("name", ["tanh", "cnn", "residual"])
def test_hessian_pairs_are_those_of_the_dense_hessian(name: str, loss_name: str) -> None:
    model, x, y = network(name)
    loss = LOSSES.build({"name": loss_name}, "loss")
    _, dense = dense_loss_hessian(model, x, y, loss)
    values, vectors, residuals = hessian_top(model, x, y, loss, k=3, tol=1e-9, seed=4)
    assert torch.allclose(values, torch.linalg.eigvalsh(dense).flip(0)[:3], rtol=1e-8, atol=1e-10)
    assert torch.allclose((dense @ vectors - vectors * values).norm(dim=0), residuals, atol=1e-10)
    start = torch.cat([vectors, torch.randn(len(dense), 1, dtype=torch.float64)], dim=1)
    warm, _, _ = hessian_top(model, x, y, loss, k=3, tol=1e-9, start=start, chunk=3)
    assert torch.allclose(warm, values, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["tanh", "residual"])
def test_batch_sharpness_is_the_mean_of_dense_quotients(name: str) -> None:
    model, x, y = network(name)
    loss = LOSSES.build({"name": "ce"}, "loss")
    found = batch_sharpness(model, x, y, loss, 3, 5, torch.Generator().manual_seed(3))
    draw = torch.Generator().manual_seed(3)
    quotients = []
    for _ in range(5):
        rows = torch.randperm(N, generator=draw)[:3]
        g, hessian = dense_loss_hessian(model, x[rows], y[rows], loss)
        quotients.append(g @ hessian @ g / (g @ g))
    exact = torch.stack(quotients)
    assert found[0] == pytest.approx(float(exact.mean()), rel=1e-10)
    assert found[1] == pytest.approx(float(exact.std() / 5**0.5), rel=1e-10)
    one = batch_sharpness(model, x, y, loss, N, 1, torch.Generator())
    assert one[1] != one[1]


def test_batch_sharpness_of_tiny_gradients_does_not_underflow() -> None:
    model, x, y = network("linear")
    model, x = model.float(), x.float()
    loss = LOSSES.build({"name": "ce"}, "loss")
    with torch.no_grad():
        # Confident by 60 logits: the gradient is about 1e-26, its square below the least float32.
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([60.0, 0.0, 0.0]))
    mean, _ = batch_sharpness(model, x, torch.zeros_like(y), loss, N, 1, torch.Generator())
    assert mean > 0


@pytest.mark.parametrize("name", ["tanh", "cnn", "residual"])
def test_a_matrix_of_one_hot_probabilities_is_zero_and_certified(name: str) -> None:
    model, x, _ = network(name)
    with torch.no_grad():
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        last.bias.add_(torch.tensor([0.0, 5000.0, 0.0], dtype=torch.float64))
    for dtype in (torch.float64, torch.float32):
        model, x = model.to(dtype), x.to(dtype)
        matrix = GaussNewton(model, x)
        values, vectors, residuals = matrix.top(2)
        assert values.tolist() == [0.0, 0.0]
        assert residuals.tolist() == [0.0, 0.0]
        assert vectors.isfinite().all()
        assert matrix.trace() == 0.0
        tracker = SharpnessTracker()
        for _ in range(3):
            reading = tracker.update(model, x)
            assert (reading.value, reading.residual) == (0.0, 0.0)


def test_two_classes_one_sample_and_more_pairs_than_dimensions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
    x = torch.randn(1, 2, dtype=torch.float64)
    for loss in ("ce", "mse"):
        dense = dense_gauss_newton(model, x, loss)
        values, vectors, _ = GaussNewton(model, x, loss).top(9, tol=1e-10)
        assert vectors.shape == (4, 4)
        assert torch.allclose(values, torch.linalg.eigvalsh(dense).flip(0), atol=1e-12)
        reading = SharpnessTracker(tol=1e-6).update(model, x, loss)
        assert reading.value == pytest.approx(float(values[0]), rel=1e-10)


def test_a_degenerate_top_eigenvalue_has_its_whole_eigenspace() -> None:
    # For squared error a linear model's matrix is (2/K) I_K times a matrix of inputs: K equal eigenvalues.
    model, x, _ = network("linear")
    dense = dense_gauss_newton(model, x, "mse")
    values, vectors, _ = GaussNewton(model, x, "mse").top(3, tol=1e-9)
    assert torch.allclose(values, values[0].expand(3), rtol=1e-10)
    assert torch.allclose(dense @ vectors, vectors * values, atol=1e-8)
    reading = SharpnessTracker().update(model, x, "mse")
    assert reading.value == pytest.approx(float(values[0]), rel=1e-5)


def test_frozen_parameters_are_no_part_of_the_matrix() -> None:
    model, x, _ = network("tanh")
    model[1].weight.requires_grad_(False)
    dense = dense_gauss_newton(model, x, "ce")
    matrix = GaussNewton(model, x)
    assert matrix.perceptron is None
    vector = torch.randn(len(dense), dtype=torch.float64)
    assert torch.allclose(matrix.matvec(vector), dense @ vector, atol=1e-12)


def test_the_traced_product_is_the_untraced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.curvature.linearized.LEAST_WORK_TO_TRACE", 0)
    model, x, _ = network("residual")
    matrix = GaussNewton(model, x)
    vector = torch.randn(matrix.size, dtype=torch.float64)
    products = [matrix.matvec(vector) for _ in range(6)]
    assert matrix.linearization._tangent_map is not None
    assert all(torch.allclose(p, products[0], atol=1e-12) for p in products)


def test_a_forward_is_the_models_own_whoever_watches() -> None:
    model, x, _ = network("tanh")
    plain = run_forward(model, x, grad=True)
    assert torch.equal(plain.logits, model(x))
    assert plain.logits.requires_grad
    assert plain.outputs is not None
    assert not any(output.requires_grad for output in plain.outputs)
    seen: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    watched = run_forward(model, x)
    assert len(seen) == 1
    assert all(torch.equal(a, b) for a, b in zip(watched.outputs, plain.outputs, strict=True))
    handle.remove()
    parts = run_forward(model, x, chunk=3)
    assert parts.outputs is None
    assert torch.allclose(parts.logits, plain.logits, rtol=1e-13)


def test_a_hook_that_changes_the_output_is_part_of_the_network() -> None:
    model, x, _ = network("tanh")
    before = GaussNewton(model, x, "mse")
    vector = torch.randn(before.size, dtype=torch.float64)
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    doubled = GaussNewton(model, x, "mse")
    assert doubled.perceptron is None
    assert torch.allclose(doubled.matvec(vector), 4 * before.matvec(vector), rtol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Tanh(), nn.Linear(4, K)),
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, K), nn.Softplus()),
        nn.Sequential(nn.LayerNorm(5), nn.Linear(5, K)),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, K)),
        nn.utils.parametrizations.weight_norm(nn.Linear(5, K)),
        Residual(),
    ],
)
def test_other_networks_are_not_taken_for_perceptrons(model: nn.Module) -> None:
    model = model.double().eval()
    assert perceptron_stages(model) == []
    x = torch.randn(4, 5, dtype=torch.float64)
    dense = dense_gauss_newton(model, x, "ce")
    assert float(GaussNewton(model, x).top(1, 1e-9)[0][0]) == pytest.approx(
        float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-8
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["tanh", "relu", "residual"]), st.sampled_from(["ce", "mse"]))
def test_sharpness_is_below_its_bounds(seed: int, name: str, loss: str) -> None:
    """lambda_max <= tr G, and <= mean |J_i|^2 lambda_max(H_z) with lambda_max(H_z) <= 1/2 (CE) or 2/K (MSE)."""
    model, x, _ = network(name, seed)
    matrix = GaussNewton(model, x, loss)
    value = float(matrix.top(1, 1e-6)[0][0])
    slack = 1 + 1e-9
    assert 0 <= value <= matrix.trace() * slack
    largest = 0.5 if loss == "ce" else 2 / K
    assert value <= largest * float(jacobian_norms(model, x).square().mean()) * slack

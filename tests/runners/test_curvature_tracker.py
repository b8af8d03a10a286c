"""The sharpness tracker: planted spectra, crossings, resume, and trajectories against float64."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from runners.curvature import GaussNewton, SharpnessTracker, run_forward
from runners.curvature.inputs import principal_inputs
from runners.curvature.perceptron import LinearizedPerceptron
from runners.curvature.reduction import turned
from runners.models import MODELS
from tests.oracles_curvature import dense_gauss_newton


class Planted(nn.Module):
    """A network whose "mse" Gauss-Newton matrix has a spectrum that the test sets.

    The logits of sample i are (c root_i q_i . theta, 0) with orthonormal q_i and c^2 = n, so that the matrix is
    sum_i root_i^2 q_i q_i^T, as 2/K = 1.
    """

    def __init__(self, size: int, rotate: bool) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        torch.manual_seed(0)
        basis = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q
        self.basis = basis if rotate else torch.eye(size, dtype=torch.float64)
        self.spectrum = torch.ones(size, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        first = x @ (self.spectrum.sqrt()[:, None] * (self.basis @ self.theta[:, None])) * len(self.theta) ** 0.5
        return torch.cat([first, torch.zeros_like(first)], dim=1)


SIZE = 60
IDENTITY = torch.eye(SIZE, dtype=torch.float64)


def bulk() -> Tensor:
    """Eigenvalues below 1, as most of a network's are small beside the top ones."""
    return torch.linspace(1.0, 0.01, SIZE, dtype=torch.float64)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("steps", [40, 2])
def test_two_eigenvalues_that_swap_are_followed(rotate: bool, steps: int) -> None:
    """Slowly over 40 steps, and at once; eigenvectors do not move, so nothing leads from one to the other."""
    model = Planted(SIZE, rotate)
    tracker = SharpnessTracker()
    for step in range(-3, steps + 3):
        part = min(max(step / (steps - 1), 0.0), 1.0)
        model.spectrum = bulk()
        model.spectrum[3] = 10 - 2 * part
        model.spectrum[8] = 8 + 2 * part
        reading = tracker.update(model, IDENTITY, "mse")
        assert reading.value == pytest.approx(float(model.spectrum.max()), rel=2e-4)


@pytest.mark.parametrize("rotate", [False, True])
def test_an_eigenvalue_that_jumps_up_from_the_bulk_is_found_at_once(rotate: bool) -> None:
    model = Planted(SIZE, rotate)
    tracker = SharpnessTracker()
    guards = 0
    for step in range(12):
        model.spectrum = bulk()
        model.spectrum[3] = 10.0 if step < 6 else 5.0
        model.spectrum[20] = 0.5 if step < 6 else 9.0
        reading = tracker.update(model, IDENTITY, "mse")
        guards += reading.guard
        assert reading.value == pytest.approx(float(model.spectrum.max()), rel=2e-4)
    assert guards == 1


@pytest.mark.parametrize("top", [5.0, 9.0, 11.5])
def test_an_eigenvalue_that_jumps_up_is_found_whatever_the_random_vectors(top: float) -> None:
    model = Planted(SIZE, rotate=True)
    for seed in range(8):
        tracker, other = SharpnessTracker(seed=seed), 9 + 6 * seed
        for step in range(8):
            model.spectrum = bulk()
            model.spectrum[3] = 10.0 if step < 5 else top
            model.spectrum[other] = 0.5 if step < 5 else 1.3 * top
            value = tracker.update(model, IDENTITY, "mse").value
            assert value == pytest.approx(float(model.spectrum.max()), rel=1e-3)


def test_an_eigenvalue_that_overtakes_unseen_is_found_within_a_probes_interval() -> None:
    """The old one stays as it is, with a zero residual: nothing but the periodic random probe can tell."""
    model = Planted(SIZE, rotate=True)
    tracker = SharpnessTracker()
    wrong = 0
    for step in range(60):
        model.spectrum = bulk()
        model.spectrum[3] = 10.0
        model.spectrum[20] = 0.5 if step < 5 else 20.0
        wrong += abs(tracker.update(model, IDENTITY, "mse").value / float(model.spectrum.max()) - 1) > 2e-4
    assert wrong < 25


def test_a_second_eigenvector_that_turns_and_overtakes_is_found_at_once() -> None:
    """The old top stays as it is, and the second Ritz value lies below it: only its residual tells."""
    model = Planted(SIZE, rotate=True)
    tracker = SharpnessTracker()
    before = model.basis[[8, 20]].clone()
    for step in range(8):
        model.spectrum = bulk()
        model.spectrum[3], model.spectrum[8] = 10.0, 9.6
        if step == 6:
            angle = torch.tensor(torch.pi / 6, dtype=torch.float64)
            turn = torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])])
            model.basis[[8, 20]] = turn @ before
        if step >= 6:
            model.spectrum[8] = 10.4
        reading = tracker.update(model, IDENTITY, "mse")
        assert reading.value == pytest.approx(float(model.spectrum.max()), rel=2e-4)


def test_a_degenerate_top_and_a_matrix_that_becomes_zero_and_back() -> None:
    model = Planted(SIZE, rotate=True)
    tracker = SharpnessTracker()
    for scale in (1.0, 1.0, 0.0, 0.0, 1.0):
        model.spectrum = bulk()
        model.spectrum[:4] = 7.0
        model.spectrum *= scale
        reading = tracker.update(model, IDENTITY, "mse")
        assert reading.value == pytest.approx(7.0 * scale, rel=2e-4)
        assert reading.residual <= 0.02 * 7


def digits_like(n: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Clustered inputs with a decaying spectrum, and labels."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 5, (n,), generator=generator)
    centres = torch.randn(5, width, generator=generator)
    decay = torch.linspace(0, 4, width).neg().exp()
    return ((centres[y] + torch.randn(n, width, generator=generator)) * decay).to(dtype), y


@pytest.mark.parametrize(("name", "rank"), [("mlp", 4), ("mlp", 100), ("cnn", 100)])
def test_values_along_a_descent_at_the_edge_are_those_of_float64(name: str, rank: int) -> None:
    x, y = digits_like(120, 64, torch.float32)
    torch.manual_seed(0)
    if name == "cnn":
        x = x.view(-1, 1, 8, 8)
        model = MODELS.build({"name": "cnn", "channels": (4,), "activation": "tanh"}, "m").build((1, 8, 8), 5)
    else:
        model = MODELS.build({"name": "mlp", "hidden": (16, 16)}, "m").build((64,), 5)
    tracker = SharpnessTracker(rank=rank)
    descent = torch.optim.SGD(model.parameters(), lr=0.8)
    for step in range(60):
        forward = run_forward(model, x, grad=True)
        gradient = torch.autograd.grad(cross_entropy(forward.logits, y), list(model.parameters()))
        reading = tracker.update(model, x, "ce", forward=forward, gradient=gradient)
        if step % 6 == 0:
            exact, _, _ = GaussNewton(copy.deepcopy(model).double(), x.double()).top(1, 1e-6, seed=step)
            error = 1 - reading.value / float(exact[0])
            # A lower bound, up to float32's rounding. Four input directions hold less of the vector.
            assert -1e-5 < error < (1e-2 if rank == 4 else 2e-4)
            assert reading.residual <= (0.3 if rank == 4 else 0.021) * reading.value
        for p, g in zip(model.parameters(), gradient, strict=True):
            p.grad = g
        descent.step()


def test_residual_and_value_are_those_of_the_whole_matrix_when_the_search_is_reduced() -> None:
    x, _ = digits_like(40, 30, torch.float64)
    torch.manual_seed(0)
    model = MODELS.build({"name": "mlp", "hidden": (6,)}, "m").build((30,), 5).double()
    tracker = SharpnessTracker(rank=5)
    reading = tracker.update(model, x)
    dense = dense_gauss_newton(model, x, "ce")
    state = tracker.state_dict()
    inputs = principal_inputs(x, 5)
    basis = inputs.axes @ state["bases"][0]
    reduced, first = state["memory"][2][0], 6 * basis.shape[1]
    vector = torch.cat([(reduced[:first].view(6, -1) @ basis.T).flatten(), reduced[first:]])
    theta = float(vector @ dense @ vector)
    assert reading.residual == pytest.approx(float((dense @ vector - theta * vector).norm()), rel=1e-6)
    assert reading.value == pytest.approx(float((dense @ vector).square().sum()) / theta, rel=1e-10)


def test_curvature_in_inputs_that_their_axes_leave_out_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty samples, all certain, are so large that their Gram matrix hides what the ten uncertain ones span."""
    torch.manual_seed(0)
    x = torch.randn(60, 40)
    x[:50] = 1e4 * torch.randn(50, 3) @ torch.randn(3, 40)
    model = MODELS.build({"name": "mlp", "hidden": (6,), "activation": "relu"}, "m").build((40,), 2)
    with torch.no_grad():
        list(model.parameters())[2].mul_(5)
    exact = float(torch.linalg.eigvalsh(dense_gauss_newton(copy.deepcopy(model).double(), x.double(), "ce"))[-1])
    tracker = SharpnessTracker(rank=5)
    for _ in range(2):
        assert tracker.update(model, x).value == pytest.approx(exact, rel=1e-4)
    assert tracker.state_dict()["coordinates"] == "inputs"
    monkeypatch.setattr("runners.curvature.tracker.UNSEEN", float("inf"))
    assert SharpnessTracker(rank=5).update(model, x).value < 0.9 * exact


@pytest.mark.parametrize(("n", "f"), [(300, 200), (150, 400)])
def test_axes_hold_the_inputs_up_to_rounding(n: int, f: int) -> None:
    x = digits_like(n, f, torch.float32)[0] * torch.linspace(0, 16, f).neg().exp()
    found = principal_inputs(x, 20)
    assert found.axes.shape[1] < min(n, f) - 20
    left_out = torch.linalg.matrix_norm(x.double() - (found.inputs @ found.axes.T).double(), 2)
    assert 0 < left_out <= found.unseen < 2e-3 * torch.linalg.matrix_norm(x, 2)
    values = torch.linalg.svdvals(x.double())
    assert torch.allclose(found.inputs[:, :5].norm(dim=0).double(), values[:5], rtol=1e-4)
    assert torch.allclose(found.coordinates, found.inputs[:, :20])


def test_axes_make_no_difference_to_the_value() -> None:
    x, y = digits_like(300, 200, torch.float32)
    model = MODELS.build({"name": "mlp", "hidden": (20,)}, "m").build((200,), 5)
    for _ in range(30):
        for p, g in zip(
            model.parameters(), torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())), strict=True
        ):
            p.data -= 0.1 * g
    on_axes, whole = SharpnessTracker(rank=60), SharpnessTracker(rank=60)
    whole.load_state_dict({**whole.state_dict(), "coordinates": "inputs"})
    assert on_axes.update(model, x).value == pytest.approx(whole.update(model, x).value, rel=2e-6)


def faint_inputs(n: int = 400) -> Tensor:
    """Inputs of 400 numbers, all but 2 in a thousand of whose squared length lies in twenty of them."""
    x = torch.randn(n, 400, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x[:, :20] *= 100
    return x


def test_random_combinations_tell_the_length_of_what_the_leading_axes_leave_out() -> None:
    x = faint_inputs()
    every, leading = principal_inputs(x, 10), principal_inputs(x, 10, coordinates="leading")
    count = leading.inputs.shape[1]
    assert torch.equal(leading.inputs, every.inputs[:, :count])
    rest = every.inputs[:, count:]
    assert rest.shape[1] >= 256
    assert float(rest.square().sum()) <= 0.004 * float(x.square().sum())
    rows = torch.randn(200, len(x), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert float((rows @ leading.faint).norm()) == pytest.approx(float((rows @ rest).norm()), rel=0.05)
    few = x[:60].clone()
    assert principal_inputs(few, 10, coordinates="leading") is principal_inputs(few, 10)


def test_curvature_in_the_faint_axes_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most samples that are large in the leading axes are certain, and fifty lie in the others."""
    torch.manual_seed(0)
    x = faint_inputs()
    x[350:, :20] = 0
    model = MODELS.build({"name": "mlp", "hidden": (6,), "activation": "relu"}, "m").build((400,), 2).double()
    with torch.no_grad():
        list(model.parameters())[2].mul_(5)
    exact = float(torch.linalg.eigvalsh(dense_gauss_newton(model, x, "ce"))[-1])
    tracker = SharpnessTracker(rank=20)
    for _ in range(3):
        assert tracker.update(model, x).value == pytest.approx(exact, rel=5e-5)
    assert tracker.state_dict()["coordinates"] == "axes"
    monkeypatch.setattr("runners.curvature.tracker.MOST_FAINT", float("inf"))
    missing = SharpnessTracker(rank=20)
    reading = missing.update(model, x)
    assert reading.value < exact * (1 - 3e-4)
    assert missing.state_dict()["coordinates"] == "leading"
    # Though they do not enter the value, the residual tells of them.
    assert reading.residual > 0.02 * reading.value


def few_samples_hold_the_curvature() -> tuple[nn.Module, Tensor]:
    """A network that has learnt all but three of its samples, whose inputs no leading direction is near."""
    torch.manual_seed(0)
    x = torch.randn(150, 200, dtype=torch.float64)
    x[:, :20] *= 3
    y = (x[:, 0] > 0).long()
    y[:3] = 1 - y[:3]
    model = MODELS.build({"name": "mlp", "hidden": (8,)}, "m").build((200,), 2).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, x


def test_directions_that_the_search_lacks_join_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = few_samples_hold_the_curvature()
    exact = float(torch.linalg.eigvalsh(dense_gauss_newton(model, x, "ce"))[-1])
    tracker = SharpnessTracker(rank=20)
    readings = [tracker.update(model, x) for _ in range(3)]
    for reading in readings:
        assert reading.value == pytest.approx(exact, rel=5e-5)
    # They stay: the steps after need no second search.
    assert readings[2].products < readings[0].products / 2
    monkeypatch.setattr("runners.curvature.tracker.MOST_ENRICHMENTS", 0)
    assert SharpnessTracker(rank=20).update(model, x).value < exact * (1 - 3e-4)


@pytest.mark.parametrize("hidden_rank", [40, 3])
def test_hidden_layers_are_searched_on_a_few_directions_and_whole_where_these_do_not_do(
    hidden_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.curvature.reduction.HIDDEN_RANK", hidden_rank)
    x, y = digits_like(300, 200, torch.float64)
    torch.manual_seed(0)
    model = MODELS.build({"name": "mlp", "hidden": (90, 90)}, "m").build((200,), 5).double()
    tracker, resumed = SharpnessTracker(rank=60), SharpnessTracker(rank=60)
    descent = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(17):
        resumed.load_state_dict(copy.deepcopy(tracker.state_dict()))
        reading = tracker.update(model, x)
        assert resumed.update(model, x)[:5] == reading[:5]
        if step % 4 == 0:
            exact = float(GaussNewton(model, x).top(1, 1e-6, seed=step)[0][0])
            # A lower bound.
            assert -1e-9 < 1 - reading.value / exact < 5e-5
        descent.zero_grad()
        cross_entropy(model(x), y).backward()
        descent.step()
    hidden = tracker.state_dict()["bases"][1]
    assert hidden is None if hidden_rank == 3 else hidden.shape == (90, 40)


def test_vectors_are_turned_from_one_basis_to_another_as_the_weights_they_stand_for() -> None:
    torch.manual_seed(0)
    model = MODELS.build({"name": "mlp", "hidden": (7,)}, "m").build((9,), 3).double()
    whole = LinearizedPerceptron.at(model, torch.randn(20, 9, dtype=torch.float64))
    assert whole is not None
    old, new = (torch.linalg.qr(torch.randn(9, r, dtype=torch.float64)).Q for r in (4, 5))
    hidden = torch.linalg.qr(torch.randn(7, 2, dtype=torch.float64)).Q
    rows = torch.randn(2, 7 * 4 + 7 + 3 * 7 + 3, dtype=torch.float64)
    found = turned(rows, whole, [old, None], [new, hidden])
    for row, out in zip(rows, found, strict=True):
        first, bias, second, last = row.split([28, 7, 21, 3])
        # The weights themselves, on the new directions.
        weight = first.view(7, 4) @ old.T
        expected = [(weight @ new).flatten(), bias, (second.view(3, 7) @ hidden).flatten(), last]
        assert torch.allclose(out, torch.cat(expected), atol=1e-14)


def test_other_inputs_after_an_enrichment_start_anew() -> None:
    model, x = few_samples_hold_the_curvature()
    tracker = SharpnessTracker(rank=20)
    tracker.update(model, x)
    assert tracker.state_dict()["bases"][0].shape[1] > 20
    other, narrow = MODELS.build({"name": "mlp", "hidden": (8,)}, "m").build((50,), 2).double(), x[:, :50].contiguous()
    exact = float(torch.linalg.eigvalsh(dense_gauss_newton(other, narrow, "ce"))[-1])
    assert tracker.update(other, narrow).value == pytest.approx(exact, rel=2e-4)


def test_few_samples_lose_nothing_by_the_reduction() -> None:
    x, _ = digits_like(12, 64, torch.float64)
    found = principal_inputs(x, 30)
    assert found.basis.shape == (12, 12)
    assert torch.allclose(found.coordinates @ found.axes.T, x, atol=1e-10)


def test_the_inputs_are_factored_once_and_anew_when_they_change() -> None:
    x, _ = digits_like(40, 30, torch.float64)
    first = principal_inputs(x, 5)
    assert principal_inputs(x, 5) is first
    x.mul_(2)
    assert torch.allclose(principal_inputs(x, 5).coordinates.norm(), 2 * first.coordinates.norm())


@pytest.mark.parametrize("rank", [5, 100])
def test_a_resumed_tracker_goes_on_bit_for_bit(rank: int) -> None:
    x, y = digits_like(60, 40, torch.float32)

    def run(cut: int | None) -> list[tuple[float, ...]]:
        torch.manual_seed(0)
        model = MODELS.build({"name": "mlp", "hidden": (8,)}, "m").build((40,), 5)
        descent = torch.optim.SGD(model.parameters(), lr=0.5)
        tracker, readings = SharpnessTracker(rank=rank, seed=3), []
        inputs = x.clone()
        for step in range(40):
            if step == cut:
                state = copy.deepcopy(tracker.state_dict())
                tracker, inputs = SharpnessTracker(rank=rank, seed=3), x.clone()
                tracker.load_state_dict(state)
            readings.append(tracker.update(model, inputs)[:5])
            descent.zero_grad()
            cross_entropy(model(inputs), y).backward()
            descent.step()
            torch.randn(step % 3)
        return readings

    whole = run(None)
    for cut in (1, 7, 25):
        assert repr(run(cut)) == repr(whole)


def test_another_network_starts_the_search_anew() -> None:
    x, _ = digits_like(30, 10, torch.float64)
    tracker = SharpnessTracker(tol=1e-4)
    for hidden in ((4,), (6,), (4, 4)):
        torch.manual_seed(0)
        model = MODELS.build({"name": "mlp", "hidden": hidden}, "m").build((10,), 5).double()
        exact = torch.linalg.eigvalsh(dense_gauss_newton(model, x, "ce"))[-1]
        assert tracker.update(model, x).value == pytest.approx(float(exact), rel=1e-6)


def test_logits_that_are_not_finite_give_nan_and_leave_the_memory_alone() -> None:
    x, _ = digits_like(30, 10, torch.float64)
    model = MODELS.build({"name": "mlp", "hidden": (4,)}, "m").build((10,), 5).double()
    tracker = SharpnessTracker()
    before = tracker.update(model, x)
    state = tracker.state_dict()
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken[1].weight[0, 0] = float("nan")
    reading = tracker.update(broken, x)
    assert reading.value != reading.value
    assert all(a is b for a, b in zip(tracker.state_dict()["memory"], state["memory"], strict=True))
    assert tracker.update(model, x).value == pytest.approx(before.value, rel=1e-4)


def test_the_search_draws_nothing_from_the_global_generator() -> None:
    x, _ = digits_like(30, 10, torch.float64)
    model = MODELS.build({"name": "mlp", "hidden": (4,)}, "m").build((10,), 5).double()
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    SharpnessTracker().update(model, x)
    GaussNewton(model, x).top(2)
    assert torch.equal(torch.randn(3), expected)

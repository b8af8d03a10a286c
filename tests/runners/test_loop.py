"""The loop: the same spec gives the same record, recording changes nothing, and steps are the optimizer's own."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from analysis.plugins import SettingError
from analysis.record import Run
from runners.curvature.forward import run_forward
from runners.loop import Training, train
from runners.recorder import Diverged, Recorder
from tests.runners.conftest import OPTIMIZERS, assert_same_records, small_spec


def final_weights(path):
    saved = torch.load(sorted((path / "checkpoints").glob("*.pt"))[-1], weights_only=False)
    return saved["model"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_same_spec_gives_the_same_record(optimizer, tmp_path):
    spec = small_spec(optimizer)
    torch.manual_seed(1)
    one = train(spec, tmp_path / "one")
    torch.manual_seed(2)
    other = train(spec, tmp_path / "other")
    assert_same_records(one, other)
    run = Run.open(one)
    assert run.status == "finished"
    assert list(run.steps("scalars")) == list(range(13))
    assert np.isfinite(run.frame()["lambda_max"]).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_recording_does_not_change_training(optimizer, tmp_path):
    dense = small_spec(optimizer, probes={"examples": {}, "gn_sharpness": {}, "norms": {}, "logits": {}})
    sparse = small_spec(optimizer, probes={"examples": {"every": 5}})
    ends = []
    for name, spec in {"dense": dense, "sparse": sparse}.items():
        run = Run.open(train(spec, tmp_path / name))
        ends.append(run.column("examples_train", "margin")[-1])
    np.testing.assert_array_equal(*ends)


def test_gd_is_the_loop_a_reader_would_write(tmp_path):
    spec = small_spec(dtype="float64", steps=20)
    losses = Run.open(train(spec, tmp_path)).frame()["loss_train"].to_numpy()
    torch.manual_seed(spec.seed)
    data = spec.dataset.load()
    x, y = data.splits["train"].x.double(), data.splits["train"].y
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10)
    ).double()
    torch.manual_seed(spec.seed)
    own = spec.model.build(data.input_shape, data.classes).double()
    model.load_state_dict(own.state_dict())
    expected = []
    for _ in range(21):
        loss = cross_entropy(model(x), y)
        expected.append(loss.item())
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.5 * g
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


def test_a_step_makes_one_forward_per_split(tmp_path, monkeypatch):
    spec = small_spec(probes={"examples": {}, "gn_sharpness": {}, "norms": {}, "logits": {}}, steps=3)
    sizes = []

    def counted(model, x, **options):
        sizes.append(len(x))
        return run_forward(model, x, **options)

    def refused(self, x):
        raise AssertionError("a forward pass beside the shared ones")

    monkeypatch.setattr("runners.observation.run_forward", counted)
    training = Training(spec)
    splits = {name: (split.x, split.y) for name, split in training.data.splits.items()}
    recorder = Recorder(tmp_path / "r", training.model, **splits, loss=spec.loss, probes=spec.probes)
    monkeypatch.setattr(torch.nn.Sequential, "forward", refused)
    training.advance(recorder, 0, None, None)
    assert sizes == [60, 40] * 4


def test_the_samples_are_digits_of_the_right_labels():
    data = small_spec(dataset={"name": "digits"}).dataset.load()
    total = sum(len(split.y) for split in data.splits.values())
    assert total == len(load_digits().target) == 1797


def test_a_batch_larger_than_the_data_is_refused_and_writes_nothing(tmp_path):
    spec = small_spec(optimizer={"name": "sgd", "lr": 0.1, "batch_size": 61})
    with pytest.raises(SettingError, match=r"batch_size = 61.*60"):
        train(spec, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"device = 'cuda:77'.*'cpu'"):
        train(small_spec(device="cuda:77"), tmp_path)


def test_divergence_keeps_the_record_up_to_it(tmp_path):
    spec = small_spec(loss={"name": "mse"}, optimizer={"name": "gd", "lr": 1e6}, steps=200)
    with pytest.raises(Diverged):
        train(spec, tmp_path)
    run = Run.open(tmp_path / spec.id)
    assert run.status == "diverged"
    assert "lr = 1e+06 is too large" in run.meta["error"]
    assert np.isfinite(run.frame()["loss_train"]).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_records_the_same_run_to_rounding(tmp_path):
    losses = []
    for device in ("cpu", "cuda"):
        spec = small_spec(device=device, dtype="float64")
        losses.append(Run.open(train(spec, tmp_path / device)).frame()["loss_train"])
    np.testing.assert_allclose(*losses, rtol=1e-9)


def test_probes_and_losses_are_told_what_a_pixel_is_worth():
    training = Training(small_spec(probes={"robust": {}}, loss={"name": "calmo"}))
    assert training.probes["robust"]._data is training.data
    assert training.loss._data is training.data

"""What a run changes of torch's ways of computing is what its spec says, and is put back."""

import pytest
import torch

from analysis.plugins import SettingError
from analysis.record import Run
from runners.arithmetic import arithmetic
from runners.loop import Training, resume, train
from tests.runners.conftest import assert_same_records, small_spec

RESNET = {"name": "resnet20", "width": 2}


def settings() -> list[object]:
    return [
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
    ]


def test_products_are_exact_unless_asked_for_and_all_is_put_back():
    before = settings()
    with arithmetic(small_spec(threads=1)):
        assert settings() == [1, True, "ieee", "ieee"]
    assert settings() == before
    with pytest.raises(ZeroDivisionError), arithmetic(small_spec()):
        raise ZeroDivisionError
    assert settings() == before


def test_a_precision_the_device_does_not_have_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"precision = 'tf32'.*'float32'"):
        train(small_spec(precision="tf32", device="cpu"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_precision_is_in_the_id_only_where_it_is_not_the_default_and_always_in_the_record(tmp_path):
    spec = small_spec(steps=2)
    assert small_spec(steps=2, precision="float32").id == spec.id != small_spec(steps=2, precision="tf32").id
    assert Run.open(train(spec, tmp_path)).meta["precision"] == "float32"


def test_convolutional_networks_and_their_images_have_channels_last():
    training = Training(small_spec("sgd", model=RESNET))
    order = {"memory_format": torch.channels_last}
    for split in training.data.splits.values():
        assert split.x.is_contiguous(**order)
    x, _ = training.batches.take(training.objective.x, training.objective.y)
    assert x.is_contiguous(**order)
    assert all(p.is_contiguous(**order) for p in training.model.parameters() if p.ndim == 4)
    # And so is what flows back through all layers, shortcuts included.
    strides = []
    for module in training.model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_full_backward_hook(lambda module, grads, outs: strides.append(outs[0].stride()))
    training.step(None)
    assert len(strides) == 19
    assert all(stride[1] == 1 for stride in strides)


def test_other_networks_have_their_images_as_they_are():
    training = Training(small_spec("sgd"))
    assert training.data.splits["train"].x.is_contiguous()


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_convolutional_run_resumes_bit_for_bit(optimizer, tmp_path):
    spec = small_spec(
        optimizer, model=RESNET, loss={"name": "calmo"}, steps=6, probes={"examples": {}, "checkpoints": {"every": 2}}
    )
    whole = train(spec, tmp_path / "whole")
    asked = iter([False] * 3 + [True] * 100)
    path = train(spec, tmp_path / "stopped", stop=lambda: next(asked))
    resume(path)
    assert_same_records(whole, path)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("loss", ["ce", "calmo"])
def test_a_gpu_trains_a_convolutional_network_twice_alike(loss, precision, tmp_path):
    spec = small_spec("sgd", model=RESNET, loss={"name": loss}, precision=precision, device="cuda", steps=6)
    assert_same_records(train(spec, tmp_path / "one"), train(spec, tmp_path / "other"))

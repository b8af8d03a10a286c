"""Augmentation: against a loop over images, off unless asked for, and exact through a kill."""

import numpy as np
import pytest
import torch

from analysis.plugins import SettingError
from analysis.record import Run
from runners.augmentation import Augment
from runners.batches import Batches
from runners.datasets import DATASETS
from runners.loop import Training, resume, spec_of, train
from runners.spec import RunSpec, read_experiment
from tests.runners.conftest import assert_same_records

BOTH = {"crop": 4, "flip": True}
CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path):
    """A data set of 40 images of 3 x 8 x 6 bytes, each pixel with a value of its own in its image."""
    random = np.random.default_rng(0)
    x = np.stack([random.permutation(256)[:144].reshape(3, 8, 6) for _ in range(60)]).astype(np.uint8)
    y = np.arange(60) % 3
    np.savez(tmp_path / "images.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return {"name": "npz", "path": str(tmp_path / "images.npz")}


def image_spec(images, **settings):
    return RunSpec.from_dict(
        {
            "dataset": images,
            "model": {"name": "cnn"},
            "optimizer": {"name": "sgd", "lr": 0.05, "batch_size": 8},
            "steps": 13,
            "probes": {"examples": {"every": 4}, "checkpoints": {"every": 5}},
            **settings,
        }
    )


def one_image(image, black, crop, top, left, mirrored):
    """Pad, cut and mirror a single image, pixel by pixel."""
    channels, height, width = image.shape
    result = torch.empty_like(image)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                row, column = top + i - crop, left + (width - 1 - j if mirrored else j) - crop
                inside = 0 <= row < height and 0 <= column < width
                result[c, i, j] = image[c, row, column] if inside else black[c]
    return result


@pytest.mark.parametrize("settings", [BOTH, {"crop": 2}, {"flip": True}])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_batch_is_what_a_loop_over_its_images_makes(images, settings, layout):
    data = DATASETS.build(images, "dataset").load()
    augment = Augment(**settings).for_data(data)
    x = data.splits["train"].x.contiguous(memory_format=layout)
    drawn = augment.draw(len(x), torch.Generator().manual_seed(1))
    found = augment(x, drawn)
    black = -data.mean.flatten() / data.std.flatten()
    for i, image in enumerate(x):
        top, left, mirrored = drawn[:, i].tolist()
        torch.testing.assert_close(found[i], one_image(image, black, augment.crop, top, left, mirrored), rtol=0, atol=0)
    assert found.is_contiguous(memory_format=layout)
    assert found.dtype == x.dtype
    assert not torch.equal(found, x)


def test_inputs_without_a_range_are_padded_with_their_mean(tmp_path):
    x = np.random.default_rng(0).normal(3, 1, (12, 1, 5, 5))
    y = np.arange(12) % 2
    np.savez(tmp_path / "real.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = DATASETS.build({"name": "npz", "path": str(tmp_path / "real.npz")}, "dataset").load()
    augment = Augment(crop=3).for_data(data)
    corner = augment(data.splits["train"].x, torch.zeros(3, 12, dtype=torch.int16))
    assert (corner[:, :, :3] == 0).all()
    assert torch.equal(corner[:, :, 3:, 3:], data.splits["train"].x[:, :, :2, :2])


def test_places_and_flips_are_uniform():
    drawn = Augment(**BOTH).draw(9000, torch.Generator().manual_seed(0))
    for row, values in ((0, 9), (1, 9), (2, 2)):
        counts = torch.bincount(drawn[row].long(), minlength=values)
        assert len(counts) == values
        # Five standard deviations of a binomial count.
        spread = 5 * (9000 / values * (1 - 1 / values)) ** 0.5
        assert (counts - 9000 / values).abs().max() < spread
    assert not Augment(crop=4).draw(100, torch.Generator())[2].any()
    assert not Augment(flip=True).draw(100, torch.Generator())[:2].any()


def test_batches_hold_the_same_samples_and_other_images_each_epoch(images):
    data = DATASETS.build(images, "dataset").load()
    x, y = data.splits["train"].x, data.splits["train"].y
    augment = Augment(**BOTH).for_data(data)
    plain, changed = Batches(40, 8, 3, CPU), Batches(40, 8, 3, CPU, augment)
    drawn = Batches(40, 8, 3, CPU)
    for _ in range(12):
        rows = drawn.draw()
        inputs, labels = plain.take(x, y)
        assert torch.equal(inputs, x[rows])
        assert torch.equal(labels, y[rows])
        others, same = changed.take(x, y)
        assert torch.equal(same, labels)
        assert not torch.equal(others, inputs)
    epochs = Batches(40, 40, 3, CPU, augment)
    first, second = (sorted(map(hash_of, epochs.take(x, y)[0])) for _ in range(2))
    assert first != second
    again = Batches(40, 40, 3, CPU, augment)
    assert sorted(map(hash_of, again.take(x, y)[0])) == first
    other_seed = Batches(40, 40, 4, CPU, augment)
    assert sorted(map(hash_of, other_seed.take(x, y)[0])) != first


def hash_of(image):
    return image.numpy().tobytes()


@pytest.mark.parametrize("augment", [None, BOTH])
@pytest.mark.parametrize("taken", [0, 3, 5, 7])
def test_batches_go_on_where_their_state_was_taken(images, augment, taken):
    data = DATASETS.build(images, "dataset").load()
    x, y = data.splits["train"].x, data.splits["train"].y
    augment = None if augment is None else Augment(**augment).for_data(data)
    one, other = Batches(40, 8, 0, CPU, augment), Batches(40, 8, 99, CPU, augment)
    for _ in range(taken):
        one.take(x, y)
    other.load_state_dict(one.state_dict())
    for _ in range(9):
        for left, right in zip(one.take(x, y), other.take(x, y), strict=True):
            assert torch.equal(left, right)


def test_an_interrupted_run_with_augmentation_ends_as_an_uninterrupted_one(images, tmp_path):
    spec = image_spec(images, augment=BOTH)
    whole = train(spec, tmp_path / "whole")
    asked = iter(range(100))
    stopped = train(spec, tmp_path / "stopped", stop=lambda: next(asked) == 7)
    assert Run.open(stopped).status == "interrupted"
    resume(stopped)
    assert_same_records(whole, stopped)
    plain = train(image_spec(images), tmp_path / "plain")
    losses = [Run.open(path).frame()["loss_train"] for path in (whole, plain)]
    assert losses[0].iloc[0] == losses[1].iloc[0]
    assert losses[0].iloc[-1] != losses[1].iloc[-1]


def test_recorded_samples_are_the_images_as_they_are(images):
    training = Training(image_spec(images, augment=BOTH))
    before = training.data.splits["train"].x.clone()
    training.step(None)
    assert torch.equal(training.data.splits["train"].x, before)


def test_off_is_no_part_of_a_spec_and_on_is_another_run(images):
    plain = image_spec(images)
    # The id is a hash of this table, which has not changed.
    whole = {"dataset", "model", "loss", "optimizer", "steps", "seed", "device", "dtype", "threads", "probes"}
    assert set(plain.table()) == whole
    assert RunSpec.from_dict({**plain.table(), "augment": None}).id == plain.id
    on = image_spec(images, augment=BOTH)
    assert on.id != plain.id
    assert on.table()["augment"] == BOTH
    assert RunSpec.from_dict(on.table()) == on
    assert image_spec(images, augment={"crop": 4}).id != on.id


def test_the_record_says_it(images, tmp_path):
    path = train(image_spec(images, augment=BOTH, steps=1), tmp_path)
    assert Run.open(path).setting("augment.crop") == 4
    assert spec_of(Run.open(path)).augment == Augment(**BOTH)


def test_a_grid_can_span_it(images, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        f'dataset = {{ name = "npz", path = "{images["path"]}" }}\nmodel = {{ name = "cnn" }}\nsteps = 1\n'
        'optimizer = { name = "sgd", lr = 0.1, batch_size = 8 }\n'
        '[grid]\n"augment.flip" = [true]\n"augment.crop" = [0, 1, 2]\n'
    )
    assert [spec.augment.crop for spec in read_experiment(path)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"augment": True}, ["augment", "True", "table"]),
        ({"augment": {}}, ["augment", "neither crop nor flip"]),
        ({"augment": {"crop": -1}}, ["augment.crop", "-1"]),
        ({"augment": {"crop": 4, "rotate": 3}}, ["augment.rotate", "unknown setting", "crop, flip"]),
        ({"augment": BOTH, "optimizer": {"name": "gd", "lr": 0.1}}, ["augment", "gd", "batch_size"]),
    ],
)
def test_a_mistake_is_one_sentence(images, settings, words):
    with pytest.raises(SettingError) as caught:
        image_spec(images, **settings)
    for word in words:
        assert word in str(caught.value)


def test_what_is_no_image_is_refused_before_anything_is_written(images, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 64)), np.arange(20) % 2
    np.savez(tmp_path / "vectors.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    vectors = {"name": "npz", "path": str(tmp_path / "vectors.npz")}
    with pytest.raises(SettingError, match=r"augment = .*vectors has inputs of shape \(64,\); expected images"):
        train(image_spec(vectors, augment=BOTH, model={"name": "mlp"}), tmp_path / "out")
    with pytest.raises(SettingError, match=r"augment\.crop = 6: expected less than the 6 pixels"):
        train(image_spec(images, augment={"crop": 6}), tmp_path / "out")
    assert not (tmp_path / "out").exists()

"""Small specs and comparisons of whole records."""

import numpy as np
import pytest

from analysis.record import Run
from runners.spec import RunSpec

PROBES = {"examples": {}, "gn_sharpness": {}, "norms": {}}
OPTIMIZERS = {
    "gd": {"name": "gd", "lr": 0.5},
    "sgd": {"name": "sgd", "lr": 0.1, "batch_size": 16, "momentum": 0.5},
    "adamw": {"name": "adamw", "lr": 0.01},
    "muon": {"name": "muon", "lr": 0.02, "batch_size": 16},
    "sam": {"name": "sam", "lr": 0.3, "batch_size": 16},
    "bulk_sgd": {"name": "bulk_sgd", "lr": 0.1, "k": 3, "refresh": 4, "batch_size": 16},
}


def small_spec(optimizer="gd", **settings):
    """A run of seconds: 60 digits, one hidden layer of 8."""
    return RunSpec.from_dict(
        {
            "dataset": {"name": "digits", "train_size": 60, "test_size": 40, "label_noise": 0.2},
            "model": {"name": "mlp", "hidden": [8]},
            "optimizer": OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer,
            "steps": 12,
            "probes": {**PROBES, "checkpoints": {"every": 5}},
            **settings,
        }
    )


def record_arrays(path):
    """Every array of a record by stream and column."""
    run = Run.open(path)
    arrays = {}
    for stream in run.streams:
        arrays[stream, "step"] = run.steps(stream)
        for name in run.columns(stream):
            arrays[stream, name] = run.column(stream, name)
    return arrays


def assert_same_records(one, other):
    """Two records hold the same arrays, bit for bit."""
    first, second = record_arrays(one), record_arrays(other)
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=str(key))


@pytest.fixture
def spec():
    return small_spec()

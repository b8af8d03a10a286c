"""What the tests of datasets share."""

from typing import Any

import numpy as np

from runners.datasets import DATASETS, Data


def load(name: str, **settings: Any) -> Data:
    return DATASETS.build({"name": name, **settings}, "dataset").load()


def pixels(data: Data, split: str) -> np.ndarray:
    """Inputs of a split turned back into pixel units, float64."""
    x = data.splits[split].x.double()
    return (x * data.std.double() + data.mean.double()).numpy()

"""The 1,797 real handwritten digits of 8x8 pixels that come with scikit-learn: nothing to fetch."""

import numpy as np
from sklearn.datasets import load_digits

from runners.datasets import Dataset, RawData
from runners.datasets._subsets import stratified

TEST_ROWS = 599


class Digits(Dataset):
    """Handwritten digits, [n, 1, 8, 8] with pixels 0..16 (test part of optdigits, Alpaydin & Kaynak 1998).

    A third, 599 samples, is the test set: stratified, and the same for every ``seed``. The other 1,198 are
    for training and validation. On clean digits the sharpness of a small network stays low; with
    ``label_noise = 0.2`` it climbs to the edge of stability at common learning rates.
    """

    def read(self) -> RawData:
        x, y = load_digits(return_X_y=True)
        images = x.reshape(-1, 1, 8, 8).astype(np.uint8)
        test = stratified(y, TEST_ROWS, key=(0,))
        train = np.setdiff1d(np.arange(len(y)), test)
        return RawData(images[train], y[train], images[test], y[test], 10, 16.0, "digits (scikit-learn)")

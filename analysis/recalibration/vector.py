"""Vector scaling."""

from typing import ClassVar

import numpy as np

from analysis.binary_fits import minimise
from analysis.plugins import NonNegative
from analysis.predictions import Array, Floats, log_softmax, softmax
from analysis.recalibration import Parameters, Recalibration


class VectorScaling(Recalibration):
    """softmax(w * z + b), a weight and a bias for each class, of least NLL (Guo et al. 2017).

    May change the argmax. The NLL alone has no minimum when a class is missing from the calibration set (its bias
    falls for ever), hence the ridge.

    Attributes:
        ridge: half of it times (|w - 1|^2 + |b|^2) is added to the mean NLL.
    """

    preserves_argmax: ClassVar[bool] = False
    ridge: NonNegative = 1e-4

    def _fit(self, logits: Floats, labels: Array) -> Parameters:
        n, classes = logits.shape
        onehot = labels[:, None] == np.arange(classes)
        identity = np.concatenate([np.ones(classes), np.zeros(classes)])

        def objective(theta: Floats) -> tuple[float, Floats]:
            log_p = log_softmax(theta[:classes] * logits + theta[classes:])
            residual = (np.exp(log_p) - onehot) / n
            away = theta - identity
            value = -log_p[onehot].mean() + self.ridge / 2 * (away @ away)
            slope = np.concatenate([(residual * logits).sum(axis=0), residual.sum(axis=0)])
            return float(value), slope + self.ridge * away

        theta = minimise(objective, identity)
        return {"weight": theta[:classes], "bias": theta[classes:]}

    def _apply(self, parameters: Parameters, logits: Floats) -> Floats:
        return softmax(parameters["weight"] * logits + parameters["bias"])

"""SMART: a temperature for each sample, from its logit gap."""

from typing import ClassVar

import numpy as np
from scipy.special import expit

from analysis.margins import predicted_margin
from analysis.plugins import Count, Counts, Natural, NonNegative, Positive
from analysis.predictions import Array, Floats, softmax
from analysis.recalibration import Parameters, Recalibration
from analysis.recalibration._network import Layers, backward, forward, initial, train
from analysis.soft_binning import soft_ece_slope

_LEAST_TEMPERATURE = 0.1


class Smart(Recalibration):
    """softmax(z / T(g)) with g = z_(1) - z_(2) and T learnt on SoftECE (Guo et al. 2025, arXiv 2506.23492).

    g is standardised by the calibration set's mean and standard deviation, and T = softplus(network(g)) + 0.1. The
    one hidden layer of 16 ReLU units has 49 parameters; ``hidden = [16, 16]`` is the published code's variant of
    321. SoftECE is not a proper score: where it falls the NLL may rise.

    Preserves the argmax: every T is positive.

    Attributes:
        hidden: widths of the hidden layers.
        bins, sigma, delta: of `analysis.calibration.soft_ece`; 1e-3 is the published delta, 0 the plain value.
        lr, epochs, patience: of Adam on the full batch.
        seed: of the first weights.
    """

    preserves_argmax: ClassVar[bool] = True
    hidden: Counts = (16,)
    bins: Count = 15
    sigma: Positive = 0.05
    delta: NonNegative = 0.0
    lr: Positive = 5e-3
    epochs: Count = 2000
    patience: Count = 200
    seed: Natural = 0

    def _fit(self, logits: Floats, labels: Array) -> Parameters:
        gap = predicted_margin(logits)
        centre, scale = gap.mean(), gap.std() or 1.0
        below_top = logits - logits.max(axis=-1, keepdims=True)
        correct = (logits.argmax(axis=-1) == labels).astype(np.float64)

        def step(layers: Layers) -> tuple[float, Layers]:
            return self.loss_slope(layers, (gap - centre) / scale, below_top, correct)

        layers = train(initial(self.hidden, self.seed), step, self.lr, self.epochs, self.patience)
        fitted: Parameters = {"centre": np.asarray(centre), "scale": np.asarray(scale)}
        for depth, (weight, bias) in enumerate(layers):
            fitted |= {f"weight_{depth}": weight, f"bias_{depth}": bias}
        return fitted

    def loss_slope(self, layers: Layers, g: Floats, below_top: Floats, correct: Floats) -> tuple[float, Layers]:
        """SoftECE and its gradient in the network's weights.

        Args:
            layers: the network.
            g: standardised gaps [n].
            below_top: logits minus their row's largest, [n, K].
            correct: [n].
        """
        entering = forward(layers, g)
        raw = entering[-1][:, 0]
        temperature = _temperature(raw)
        p = softmax(below_top / temperature[:, None])
        confidence = p.max(axis=-1)
        loss, slope = soft_ece_slope(confidence, correct, self.bins, self.sigma, self.delta)
        # dc/dT = c sum_k p_k (z_k - z_top) / T^2, and dT/draw is the sigmoid of raw.
        along = confidence * (p * below_top).sum(axis=-1) / temperature**2 * expit(raw)
        return loss, backward(layers, entering, slope * along)

    def _apply(self, parameters: Parameters, logits: Floats) -> Floats:
        depths = range(len(self.hidden) + 1)
        layers = [(parameters[f"weight_{depth}"], parameters[f"bias_{depth}"]) for depth in depths]
        g = (predicted_margin(logits) - parameters["centre"]) / parameters["scale"]
        return softmax(logits / _temperature(forward(layers, g)[-1][:, 0])[:, None])


def _temperature(raw: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, raw) + _LEAST_TEMPERATURE)

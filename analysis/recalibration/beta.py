"""Beta calibration."""

import numpy as np
from scipy.special import expit

from analysis.binary_fits import fit_logistic, platt_targets
from analysis.margins import log_odds
from analysis.predictions import Floats
from analysis.recalibration import Parameters
from analysis.recalibration._scores import ScoreRecalibration


class Beta(ScoreRecalibration):
    """sigmoid(a log p - b log(1 - p) + c) with a, b >= 0, of least log loss (Kull, Silva Filho and Flach 2017).

    With a = b = 1, c = 0 it changes nothing, which Platt scaling of probabilities cannot. May change the argmax.

    Attributes:
        target_smoothing: fit to Platt's targets instead of 1 and 0, which keeps the fit finite on a separable set.
    """

    target_smoothing: bool = True

    def scores_of(self, logits: Floats) -> Floats:
        # Both logarithms are functions of the log odds, which a probability near 1 has lost.
        return log_odds(logits)

    def fit_scores(self, scores: Floats, outcomes: Floats) -> Parameters:
        features = _features(scores)
        targets = platt_targets(outcomes) if self.target_smoothing else outcomes
        scale = np.array([*np.maximum(np.abs(features[:, :2]).mean(axis=0), 1e-12), 1.0])
        bounds = [(0.0, None), (0.0, None), (None, None)]
        a, b, c = fit_logistic(features / scale, targets, np.array([*scale[:2], 0.0]), bounds) / scale
        return {"a": np.asarray(a), "b": np.asarray(b), "c": np.asarray(c)}

    def apply_scores(self, parameters: Parameters, scores: Floats) -> Floats:
        return np.asarray(expit(_features(scores) @ np.array([parameters[name] for name in "abc"])))


def _features(odds: Floats) -> Floats:
    """log p, -log(1 - p) and 1 from the log odds, [n, 3]."""
    return np.stack([-np.logaddexp(0.0, -odds), np.logaddexp(0.0, odds), np.ones_like(odds)], axis=-1)

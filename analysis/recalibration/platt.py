"""Platt scaling."""

import numpy as np
from scipy.special import expit

from analysis.binary_fits import fit_logistic, platt_targets
from analysis.margins import log_odds
from analysis.predictions import Floats
from analysis.recalibration import Parameters
from analysis.recalibration._scores import ScoreRecalibration


class Platt(ScoreRecalibration):
    """sigmoid(slope s + intercept) of least log loss (Platt 1999), s the log odds of the class.

    May change the argmax.

    Attributes:
        target_smoothing: fit to Platt's targets (N+ + 1)/(N+ + 2) and 1/(N- + 2) instead of 1 and 0, which keeps
            the fit finite on a separable set.
    """

    target_smoothing: bool = True

    def scores_of(self, logits: Floats) -> Floats:
        return log_odds(logits)

    def fit_scores(self, scores: Floats, outcomes: Floats) -> Parameters:
        targets = platt_targets(outcomes) if self.target_smoothing else outcomes
        # Standardised, so that the search meets the same problem whatever the scale of the logits.
        centre, scale = scores.mean(), scores.std() or 1.0
        u = (scores - centre) / scale
        slope, intercept = fit_logistic(np.stack([u, np.ones_like(u)], axis=-1), targets, np.zeros(2))
        return {"slope": np.asarray(slope / scale), "intercept": np.asarray(intercept - slope * centre / scale)}

    def apply_scores(self, parameters: Parameters, scores: Floats) -> Floats:
        return np.asarray(expit(parameters["slope"] * scores + parameters["intercept"]))

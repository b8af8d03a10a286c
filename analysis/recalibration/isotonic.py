"""Isotonic regression."""

import numpy as np

from analysis.binary_fits import isotonic_knots
from analysis.predictions import Floats
from analysis.recalibration import Parameters
from analysis.recalibration._scores import ScoreRecalibration


class Isotonic(ScoreRecalibration):
    """The nondecreasing map of least squared error (Zadrozny and Elkan 2002).

    Linear between the scores of the calibration set, constant outside them. May change the argmax. Many of its rates
    are exactly 0 or 1, where a wrong prediction has an infinite NLL.
    """

    def fit_scores(self, scores: Floats, outcomes: Floats) -> Parameters:
        x, height = isotonic_knots(scores, outcomes)
        # Interior points of a flat stretch change nothing.
        kept = np.ones(len(x), dtype=bool)
        kept[1:-1] = (height[1:-1] != height[:-2]) | (height[1:-1] != height[2:])
        return {"score": x[kept], "rate": height[kept]}

    def apply_scores(self, parameters: Parameters, scores: Floats) -> Floats:
        return np.interp(scores, parameters["score"], parameters["rate"])

"""Histogram binning."""

from analysis.binary_fits import histogram_lookup, histogram_rates
from analysis.plugins import Count
from analysis.predictions import Floats
from analysis.recalibration import Parameters
from analysis.recalibration._scores import ScoreRecalibration


class HistogramBinning(ScoreRecalibration):
    """Every score becomes the rate of its bin, of equal width and closed on the right (Zadrozny and Elkan 2001).

    In a bin that was empty the score stays. May change the argmax.

    Attributes:
        bins: number of bins.
    """

    bins: Count = 15

    def fit_scores(self, scores: Floats, outcomes: Floats) -> Parameters:
        return {"rate": histogram_rates(scores, outcomes, self.bins)}

    def apply_scores(self, parameters: Parameters, scores: Floats) -> Floats:
        return histogram_lookup(scores, parameters["rate"])

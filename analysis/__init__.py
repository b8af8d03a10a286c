"""What the records say: calibration, margins, bounds and statistics. Never imports torch."""

from analysis.coupling import CouplingResult, couple
from analysis.mediation import MediationResult, mediate
from analysis.record import Run, Runs
from analysis.results import Outcome, Result, Verdict
from analysis.tailfit import BoundFit, fit_bound
from analysis.verdicts import verify

__all__ = [
    "BoundFit",
    "CouplingResult",
    "MediationResult",
    "Outcome",
    "Result",
    "Run",
    "Runs",
    "Verdict",
    "couple",
    "fit_bound",
    "mediate",
    "verify",
]

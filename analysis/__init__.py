"""What the records say: calibration, margins, bounds and statistics. Never imports torch."""

from analysis.record import Run, Runs

__all__ = ["Run", "Runs"]

"""What the records say: calibration, margins, bounds and statistics. Never imports torch."""

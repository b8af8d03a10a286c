"""What makes records: specs, the training loop and its probes."""

from runners.loop import resume, train
from runners.recorder import Recorder
from runners.spec import RunSpec

__all__ = ["Recorder", "RunSpec", "resume", "train"]

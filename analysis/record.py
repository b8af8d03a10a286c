"""The record of a run: Writer makes it, Run reads one, Runs reads a folder of them.

A record is a folder::

    run.json                        resolved spec, and meta: versions, device, data fingerprint, status, times
    <stream>/<first>-<last>.npz     rows of consecutive steps: step [rows], and each column [rows, ...]
    <name>.npz                      arrays of the whole run, such as labels_train
    checkpoints/<step>.pt           what torch.save wrote, followed by a seal of 33 bytes

Each file is written whole under a temporary name, synced, and renamed, so a record can be read while it grows
and after its writer was killed. A flipped bit is caught by the CRC of the npz, or by the seal. Each segment
names the step before its first row, so a segment that was removed is noticed.
"""

from analysis.run import Run
from analysis.runs import Runs
from analysis.segments import RecordError
from analysis.writer import Writer

__all__ = ["RecordError", "Run", "Runs", "Writer"]

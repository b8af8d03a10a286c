"""A record against a plain list: any order of appends, flushes, cuts and reopenings, in any segmentation."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from analysis.record import Run, Writer
from tests.analysis.record_samples import header

NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(), st.booleans())
SCALAR_ROWS = st.dictionaries(st.sampled_from(["loss", "lambda_max", "ece", "norm"]), NUMBERS, max_size=4)


def vector_row(seed: int) -> dict:
    random = np.random.default_rng(seed)
    return {
        "single": random.normal(size=(3, 2)).astype(np.float32),
        "double": random.normal(size=4),
        "whole": random.integers(-(2**62), 2**62, size=2),
        "flag": random.integers(0, 2, size=3).astype(bool),
        "number": np.float32(random.normal()),
    }


class Record(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "a"
        self.writer = Writer.create(self.path, header())
        self.rows: dict[str, list[tuple[int, dict]]] = {"scalars": [], "vectors": []}
        self.saved: dict[int, tuple[bytes, bool]] = {}
        self.buffered = False

    def teardown(self) -> None:
        self.writer.close()
        shutil.rmtree(self.folder)

    def _next(self, stream: str, gap: int) -> int:
        return (self.rows[stream][-1][0] if self.rows[stream] else -1) + gap

    @rule(row=SCALAR_ROWS, gap=st.integers(1, 10**9))
    def append_scalars(self, row, gap):
        step = self._next("scalars", gap)
        self.writer.append("scalars", step, **row)
        measured = {name: float(value) for name, value in row.items() if not np.isnan(value)}
        self.rows["scalars"].append((step, measured))
        self.buffered = True

    @rule(seed=st.integers(0, 1000), gap=st.integers(1, 3), count=st.integers(1, 5))
    def append_vectors(self, seed, gap, count):
        for i in range(count):
            step = self._next("vectors", gap)
            self.writer.append("vectors", step, **vector_row(seed + i))
            self.rows["vectors"].append((step, vector_row(seed + i)))
        self.buffered = True

    @rule()
    def flush(self):
        self.writer.flush()
        self.buffered = False

    @rule(share=st.floats(-0.1, 1.1))
    def truncate(self, share):
        step = max(-1, int(share * max(self._next("scalars", 0), self._next("vectors", 0))))
        self.writer.truncate(step)
        self.rows = {name: [row for row in rows if row[0] <= step] for name, rows in self.rows.items()}
        self.saved = {at: saved for at, saved in self.saved.items() if at <= step}
        self.buffered = False

    @rule()
    def reopen(self):
        self.writer.close()
        self.writer = Writer.open(self.path)
        self.buffered = False

    @precondition(lambda self: max(self._next("scalars", 0), self._next("vectors", 0)) >= 0)
    @rule(payload=st.binary(max_size=50), keep=st.booleans())
    def checkpoint(self, payload, keep):
        step = max(self._next("scalars", 0), self._next("vectors", 0))
        self.writer.checkpoint(step, payload, keep)
        self.saved[step] = (payload, keep)
        passing = sorted(at for at, (_, kept) in self.saved.items() if not kept)
        for at in passing[:-2]:
            del self.saved[at]
        self.buffered = False

    @invariant()
    def reads_as_the_list(self):
        if self.buffered:
            return
        run = Run.open(self.path)
        assert run.streams == sorted(name for name, rows in self.rows.items() if rows)
        for stream in run.streams:
            rows = self.rows[stream]
            np.testing.assert_array_equal(run.steps(stream), [step for step, _ in rows])
            names = list(dict.fromkeys(name for _, row in rows for name in row))
            assert run.columns(stream) == names
            for name in names:
                wanted = np.stack([np.asarray(row.get(name, np.nan)) for _, row in rows])
                found = run.column(stream, name)
                np.testing.assert_array_equal(found, wanted)
                assert found.dtype == wanted.dtype
        assert run.checkpoints() == sorted(self.saved)
        newest = max(self.saved, default=None)
        assert self.writer.last_checkpoint() == (None if newest is None else (newest, self.saved[newest][0]))


TestRecord = Record.TestCase
TestRecord.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

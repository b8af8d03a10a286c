"""After a kill at any point, in the middle of writing too, a resumed record equals an uninterrupted one."""

import multiprocessing as mp
import os
import random
import signal

import pytest

from analysis.plugins import SettingError
from analysis.record import RecordError, Run, Writer
from runners.loop import resume, spec_of, train
from tests.runners.conftest import OPTIMIZERS, PROBES, assert_same_records, small_spec

CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(["runners.loop", "tests.runners.conftest"])


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run_until_killed(spec, out, step=None, write=None):
    """Train or resume, and die by SIGKILL at a step, or inside the n-th write to disk."""
    if write is not None:
        count = 0
        replace = os.replace

        def counted(*args, **kwargs):
            nonlocal count
            count += 1
            if count == write:
                _die()
            return replace(*args, **kwargs)

        os.replace = counted

    def report(now, recorder):
        # Small segments, so that a kill falls between and inside many of them.
        recorder.writer.flush()
        if now == step:
            _die()

    path = out / spec.id
    if path.exists():
        resume(path, report=report)
    else:
        train(spec, out, report=report)


@pytest.mark.parametrize("optimizer", ["sgd", "bulk_sgd"])
def test_ten_kills_leave_no_trace(optimizer, tmp_path):
    # Too long to reach its end: the ten kills below are at most eight steps apart.
    spec = small_spec(optimizer, steps=90, probes={**PROBES, "checkpoints": {"every": 7}})
    whole = train(spec, tmp_path / "whole")
    choose = random.Random(optimizer)
    out = tmp_path / "killed"
    path = out / spec.id
    for kill in range(10):
        reached = max(Run.open(path).steps("scalars"), default=0) if (path / "run.json").exists() else 0
        point = {"step": reached + choose.randint(0, 8)} if kill % 2 else {"write": choose.randint(1, 14)}
        child = CONTEXT.Process(target=_run_until_killed, args=(spec, out), kwargs=point)
        child.start()
        child.join(120)
        assert child.exitcode == -signal.SIGKILL
    resume(path)
    assert_same_records(whole, path)
    assert Run.open(path).status == "finished"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_clean_stop_leaves_no_trace(optimizer, tmp_path):
    spec = small_spec(optimizer)
    whole = train(spec, tmp_path / "whole")
    asked = iter([False] * 7 + [True] * 100)
    path = train(spec, tmp_path / "stopped", stop=lambda: next(asked))
    run = Run.open(path)
    assert run.status == "interrupted"
    assert run.steps("scalars")[-1] == 7
    resume(path)
    assert_same_records(whole, path)


def test_a_finished_run_is_left_alone(tmp_path):
    path = train(small_spec(), tmp_path)
    before = (path / "run.json").read_bytes()
    assert resume(path) == path
    assert (path / "run.json").read_bytes() == before


def test_two_processes_on_one_run(tmp_path):
    spec = small_spec()
    asked = iter([False] * 3 + [True] * 100)
    path = train(spec, tmp_path, stop=lambda: next(asked))
    with Writer.open(path), pytest.raises(RecordError, match="another process"):
        resume(path)


def test_changed_data_are_refused(tmp_path):
    spec = small_spec()
    asked = iter([False] * 3 + [True] * 100)
    path = train(spec, tmp_path, stop=lambda: next(asked))
    text = (path / "run.json").read_text()
    fingerprint = Run.open(path).meta["data"]["fingerprint"]
    (path / "run.json").write_text(text.replace(fingerprint, "0" * len(fingerprint)))
    with pytest.raises(SettingError, match="fingerprint"):
        resume(path)


def test_a_run_of_ones_own_loop_cannot_be_resumed(tmp_path):
    import torch

    from runners.recorder import Recorder

    model = torch.nn.Linear(3, 2)
    samples = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0])
    with Recorder(tmp_path / "own", model, train=samples) as recorder:
        recorder.observe(0)
    run = Run.open(tmp_path / "own")
    Writer.open(run.path).close()
    with pytest.raises(SettingError, match="loop of its own"):
        spec_of(run)

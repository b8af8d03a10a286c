"""Sweeps: what is skipped, what is reported, and what becomes of a failure."""

import os
import signal

import pytest

from analysis.record import Run
from runners.sweep import Job, Progress, default_workers, pending, stop_requests, sweep
from tests.runners.conftest import assert_same_records, small_spec


def test_two_workers_make_the_records_of_one(tmp_path):
    specs = [small_spec(seed=seed) for seed in range(3)]
    seen: list[Progress] = []
    one = sweep(pending(specs, tmp_path / "one"), 1, seen.append)
    two = sweep(pending(specs, tmp_path / "two"), 2, lambda progress: None)
    assert sorted(one.finished) == sorted(two.finished) == sorted(spec.id for spec in specs)
    for spec in specs:
        assert_same_records(tmp_path / "one" / spec.id, tmp_path / "two" / spec.id)
    last = {progress.id: progress for progress in seen}
    assert {progress.step for progress in last.values()} == {12}
    assert last.keys() == {spec.id for spec in specs}
    assert last[specs[0].id].latest.keys() == {"loss", "ece", "sharpness"}


def test_finished_runs_are_skipped_and_others_go_on(tmp_path):
    specs = [small_spec(seed=seed) for seed in range(2)]
    sweep(pending(specs[:1], tmp_path), 1, lambda progress: None)
    jobs = pending(specs, tmp_path)
    assert [job.spec.id for job in jobs] == [specs[1].id]
    assert pending(specs[:1], tmp_path) == []


def test_a_failure_is_reported_and_the_others_finish(tmp_path):
    wild = small_spec(loss={"name": "mse"}, optimizer={"name": "gd", "lr": 1e9}, steps=100)
    tame = small_spec()
    jobs = [Job(spec, tmp_path / spec.id) for spec in (wild, tame)]
    outcome = sweep(jobs, 2, lambda progress: None)
    assert outcome.finished == [tame.id]
    assert "too large" in outcome.failed[wild.id]
    assert Run.open(tmp_path / wild.id).status == "diverged"


def test_a_request_to_stop_is_asked_for_between_steps():
    with stop_requests() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_workers_share_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert default_workers([small_spec()]) == cores
    assert default_workers([small_spec(threads=cores)]) == 1
    assert default_workers([small_spec(threads=10 * cores)]) == 1

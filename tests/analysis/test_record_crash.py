"""A record whose writer is killed, raced or watched: always a clean prefix, never a lock left behind."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from analysis.record import RecordError, Run, Writer
from tests.analysis.record_samples import append, assert_holds, files, header

STREAMS = ("scalars", "examples_train")
FILE_OPERATIONS = ("replace", "fsync", "unlink", "rename", "mkdir")


@contextmanager
def process(work: Callable[[], object]):
    """A forked process that runs `work` and nothing else; yields its id, and kills it at the end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    ended = []

    def end() -> int:
        if not ended:
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return ended[0]

    try:
        yield child, end
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            end()


def die_at(count: int) -> None:
    """End this process, as by kill -9, just before its count-th operation on files."""
    left = [count]

    def dying(real):
        def operation(*args, **options):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return real(*args, **options)

        return operation

    for name in FILE_OPERATIONS:
        setattr(os, name, dying(getattr(os, name)))


def finish(writer: Writer) -> None:
    """What is left of the run after its last checkpoint."""
    saved = writer.last_checkpoint()
    step = -1 if saved is None else saved[0]
    assert saved is None or saved[1] == b"state %d" % step
    writer.truncate(step)
    for stream in STREAMS:
        assert_holds(Run.open(writer.path), stream, list(range(step + 1)))
    append(writer, range(step + 1, 10))
    writer.checkpoint(9, b"state 9", keep=True)
    writer.update(status="finished")
    writer.close()


def whole_run(path: Path) -> None:
    writer = Writer.create(path, header())
    append(writer, range(3))
    writer.flush()
    append(writer, range(3, 5))
    writer.checkpoint(4, b"state 4")
    append(writer, range(5, 8))
    writer.flush()
    writer.truncate(6)
    append(writer, range(7, 9))
    writer.flush()
    finish(writer)


def assert_clean_prefix(path: Path) -> None:
    run = Run.open(path)
    for stream in STREAMS:
        assert_holds(run, stream, list(range(len(run.steps(stream)))) if stream in run.streams else [])


def test_a_writer_killed_at_any_file_operation(tmp_path):
    deaths = 0
    for count in range(1, 500):
        path = tmp_path / str(count)

        def work(path=path, count=count):
            die_at(count)
            whole_run(path)

        with process(work) as (_, end):
            status = end()
        if status == 0:
            break
        assert status == 9
        deaths += 1
        if not path.exists():
            # It was killed before the folder had its name: the run can be made anew.
            whole_run(path)
        else:
            assert_clean_prefix(path)
            finish(Writer.open(path))
        for stream in STREAMS:
            assert_holds(Run.open(path), stream, list(range(10)))
        assert not [name for name in files(path) if ".tmp" in name]
        assert Run.open(path).checkpoint(9) == b"state 9"
    assert deaths > 50
    assert not list(tmp_path.glob(".*.new"))


def test_a_writer_killed_ten_times_at_random(tmp_path):
    path = tmp_path / "a"
    Writer.create(path, header()).close()

    def work(tell):
        writer = Writer.open(path)
        saved = writer.last_checkpoint()
        step = -1 if saved is None else saved[0]
        writer.truncate(step)
        while True:
            append(writer, range(step + 1, step + 4))
            step += 3
            writer.flush()
            os.write(tell, b"1")
            if step % 5 == 0:
                writer.checkpoint(step, os.urandom(200_000))

    draw = random.Random(0)
    grown = 0
    for _ in range(10):
        flushed, tell = os.pipe()
        with process(partial(work, tell)) as (child, end):
            for _ in range(draw.randint(1, 12)):
                os.read(flushed, 1)
            time.sleep(draw.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            assert end() == -signal.SIGKILL
        assert_clean_prefix(path)
        run = Run.open(path)
        assert not run.writing
        grown = max(grown, run.last_step)
        os.close(flushed)
        os.close(tell)
    assert grown > 20


def test_the_second_writer_of_a_run_is_refused(tmp_path):
    path = tmp_path / "a"
    Writer.create(path, header("gd-1")).close()
    ready, tell = os.pipe()

    def work():
        with Writer.open(path):
            os.write(tell, b"1")
            time.sleep(60)

    with process(work) as (child, end):
        os.read(ready, 1)
        with pytest.raises(RecordError, match=rf"run gd-1 is being written by another process \(pid {child}\)"):
            Writer.open(path)
        assert Run.open(path).writing
        os.kill(child, signal.SIGKILL)
        end()
        assert not Run.open(path).writing
        with Writer.open(path) as writer:
            append(writer, range(2))
    os.close(ready)
    os.close(tell)


def test_of_many_that_create_a_run_one_does(tmp_path):
    go, start = os.pipe()

    def work():
        os.close(start)
        os.read(go, 1)
        try:
            with Writer.create(tmp_path / "a", header()) as writer:
                append(writer, range(3))
        except RecordError:
            os._exit(2)

    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                work()
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(start)
    os.close(go)
    statuses = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert statuses == [0, *[2] * 7]
    assert_holds(Run.open(tmp_path / "a"), "scalars", [0, 1, 2])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_growing_record_is_read_while_it_is_written_and_cut(tmp_path):
    path = tmp_path / "a"
    Writer.create(path, header()).close()

    def work():
        with Writer.open(path) as writer:
            for start in range(0, 3000, 2):
                append(writer, range(start, start + 2))
                writer.flush()

    with process(work):
        lengths = []
        deadline = time.monotonic() + 30
        while (len(set(lengths)) <= 5 or lengths[-1] < 100) and time.monotonic() < deadline:
            run = Run.open(path)
            assert_clean_prefix(path)
            lengths.append(run.last_step)
    assert lengths[-1] >= 100
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5


def test_a_run_opened_before_it_is_cut_is_read_as_it_is_now(tmp_path):
    with Writer.create(tmp_path / "a", header()) as writer:
        append(writer, range(10))
        writer.flush()
        writer.update(status="running")
        run = Run.open(tmp_path / "a")
        writer.truncate(5)
        assert_holds(run, "examples_train", list(range(6)))

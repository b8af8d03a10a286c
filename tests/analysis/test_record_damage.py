"""A record that was damaged, or whose system refuses: a sentence that names the file, and no row lost."""

import errno
import json
import os
import resource
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.record import RecordError, Run, Writer
from tests.analysis.record_samples import append, assert_holds, header, scalars


@pytest.fixture
def writer(tmp_path):
    with Writer.create(tmp_path / "a", header()) as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A record of two segments, the bytes of the first, and what it says."""
    path = tmp_path_factory.mktemp("small") / "a"
    with Writer.create(path, header()) as writer:
        append(writer, range(4))
        writer.flush()
        append(writer, range(4, 6))
    segment = path / "examples_train" / "00000000-00000003.npz"
    return path, segment, segment.read_bytes()


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_is_noticed_or_changes_nothing(small, position, bit):
    path, segment, content = small
    flipped = bytearray(content)
    flipped[int(position * len(content))] ^= 1 << bit
    segment.write_bytes(flipped)
    noticed = ""
    try:
        assert_holds(Run.open(path), "examples_train", list(range(6)))
    except RecordError as error:
        noticed = str(error)
    finally:
        segment.write_bytes(content)
    assert noticed == "" or str(segment.parent) in noticed


def test_every_byte_of_the_arrays_is_guarded(small):
    path, segment, content = small
    with zipfile.ZipFile(segment) as archive:
        members = [(m.header_offset + 30 + len(m.filename), m.file_size) for m in archive.infolist()]
    guarded = 0
    for start, size in members:
        # Past the local header lie its extra field of 20 bytes (zip64), and then the array.
        for position in range(start + 20, start + 20 + size, 7):
            flipped = bytearray(content)
            flipped[position] ^= 0x10
            segment.write_bytes(flipped)
            with pytest.raises(RecordError, match=r"00000000-00000003.npz"):
                assert_holds(Run.open(path), "examples_train", list(range(6)))
            guarded += 1
    segment.write_bytes(content)
    assert guarded > 100


@pytest.mark.parametrize("stream", ["scalars", "examples_train"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_segment_is_noticed(tmp_path, stream, gone):
    with Writer.create(tmp_path / "a", header()) as writer:
        for start in range(0, 9, 3):
            append(writer, range(start, start + 3))
            writer.flush()
        writer.update(status="finished")
    sorted((tmp_path / "a" / stream).glob("*.npz"))[gone].unlink()
    with pytest.raises(RecordError, match=f"{stream}.* (are missing|were removed)"):
        Run.open(tmp_path / "a").steps(stream)
    with pytest.raises(RecordError, match=stream):
        Run.open(tmp_path / "a").frame() if stream == "scalars" else Run.open(tmp_path / "a").column(stream, "margin")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_gap_is_noticed_before_run_json_counts_the_rows(tmp_path, gone):
    writer = Writer.create(tmp_path / "a", header())
    for start in range(0, 9, 3):
        append(writer, range(start, start + 3))
        writer.flush()
    sorted((tmp_path / "a" / "scalars").glob("*.npz"))[gone].unlink()
    with pytest.raises(RecordError, match=f"scalars: the rows between steps {3 * gone - 1} and {3 * gone + 3} are"):
        Run.open(tmp_path / "a").frame()
    writer.close()


def test_of_two_segments_that_begin_alike_the_longer_is_read(writer):
    append(writer, range(3))
    writer.flush()
    whole = (writer.path / "scalars" / "00000000-00000002.npz").read_bytes()
    writer.truncate(1)
    (writer.path / "scalars" / "00000000-00000002.npz").write_bytes(whole)
    assert_holds(Run.open(writer.path), "scalars", [0, 1, 2])
    writer.close()
    Writer.open(writer.path).close()
    assert [p.name for p in (writer.path / "scalars").iterdir()] == ["00000000-00000002.npz"]


def test_a_missing_stream_is_noticed(tmp_path):
    with Writer.create(tmp_path / "a", header()) as writer:
        append(writer, range(3))
        writer.flush()
        writer.update(status="finished")
    (tmp_path / "a" / "scalars" / "00000000-00000002.npz").unlink()
    with pytest.raises(RecordError, match=r"holds 0 rows, but run.json counted 3"):
        Run.open(tmp_path / "a").steps("scalars")


# A system that refuses ----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_record_readable_and_loses_no_row(writer):
    append(writer, range(5))
    writer.flush()
    for step in range(5, 9):
        writer.append("logits_train", step, logits=np.random.default_rng(step).normal(size=5000))
    append(writer, range(5, 9))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system refuses in the middle of a file, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limit[1]))
    try:
        with pytest.raises(RecordError, match=r"logits_train.*npz: cannot write steps 5 to 8 .*: File too large"):
            writer.flush()
        writer._streams.pop("logits_train")
        with pytest.raises(RecordError, match=r"00000008.pt: cannot write the checkpoint of step 8"):
            writer.checkpoint(8, bytes(60_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    writer.flush()
    run = Run.open(writer.path)
    for stream in ("scalars", "examples_train"):
        assert_holds(run, stream, list(range(9)))
    assert not list(writer.path.rglob("*.tmp"))


@pytest.mark.parametrize(("code", "text"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only file system")])
@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
def test_what_the_system_refuses_is_said(writer, monkeypatch, code, text, call):
    append(writer, range(5))
    writer.flush()
    append(writer, range(5, 7))

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open" if call == "open" else f"os.{call}", refuse)
        with pytest.raises(RecordError, match=rf"scalars/00000005-00000006.npz: cannot write .*: {text}"):
            writer.flush()
        with pytest.raises(RecordError, match=rf"run.json: cannot write run.json: {text}"):
            writer.update(status="failed")
    assert "error" not in writer.meta
    assert json.loads((writer.path / "run.json").read_text())["meta"]["status"] == "running"
    writer.flush()
    for stream in ("scalars", "examples_train"):
        assert_holds(Run.open(writer.path), stream, list(range(7)))


def test_create_in_a_folder_that_refuses(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr("os.mkdir", refuse)
        with pytest.raises(RecordError, match="a: cannot make the folder of the run: Read-only file system"):
            Writer.create(tmp_path / "a", header())
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(RecordError, match=r"run.json: Read-only file system"):
            Writer.create(tmp_path / "a", header())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    Writer.create(tmp_path / "a", header()).close()
    (tmp_path / "a").chmod(0o500)
    with pytest.raises(RecordError, match="Permission denied"):
        Writer.open(tmp_path / "a")
    assert Run.open(tmp_path / "a").status == "running"


def test_scalars_survive_a_close_that_fails(tmp_path, monkeypatch):
    writer = Writer.create(tmp_path / "a", header())
    writer.append("scalars", 0, **scalars(0))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(RecordError, match="No space left"):
            writer.close()
    with Writer.open(tmp_path / "a") as again:
        assert again.last_checkpoint() is None

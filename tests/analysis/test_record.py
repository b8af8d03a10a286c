"""Writer and Run: what goes in comes out, and what cannot is refused with a sentence."""

from pathlib import Path

import numpy as np
import pytest

from analysis.plugins import SettingError
from analysis.record import RecordError, Run, Writer
from tests.analysis.record_samples import append, assert_holds, examples, header


@pytest.fixture
def writer(tmp_path):
    with Writer.create(tmp_path / "a", header()) as made:
        yield made


def test_a_record_returns_what_was_appended(writer):
    append(writer, range(7))
    writer.flush()
    append(writer, range(7, 12))
    writer.flush()
    run = Run.open(writer.path)
    assert run.streams == ["examples_train", "scalars"]
    for stream in run.streams:
        assert_holds(run, stream, list(range(12)))
    assert run.spec == header()["spec"]
    assert run.meta["data"] == {"classes": 3}
    assert (run.id, run.status, run.last_step) == ("a", "running", 11)


def test_a_scalar_measured_again_later_and_one_that_comes_late(writer):
    append(writer, range(2))
    writer.flush()
    append(writer, range(2, 5))
    writer.flush()
    append(writer, range(5, 8))
    writer.flush()
    frame = Run.open(writer.path).frame()
    assert list(frame.columns) == ["step", "loss_train", "lambda_max", "extra"]
    np.testing.assert_array_equal(frame["lambda_max"], [0, np.nan, np.nan, 3, np.nan, np.nan, 6, np.nan])
    np.testing.assert_array_equal(frame["extra"], [np.nan] * 5 + [5, 6, 7])
    np.testing.assert_array_equal(frame.index, frame["step"])


def test_appended_arrays_are_copies(writer):
    margin = np.zeros(3, np.float32)
    writer.append("examples_train", 0, margin=margin)
    margin[:] = 9
    writer.flush()
    np.testing.assert_array_equal(Run.open(writer.path).column("examples_train", "margin"), np.zeros((1, 3)))


# A row of examples_train is 6 * (4 + 1 + 8 + 8) = 126 bytes; 300 are passed at the third.
@pytest.mark.parametrize(("limit", "value", "rows"), [("FLUSH_ROWS", 4, 4), ("FLUSH_BYTES", 300, 3)])
def test_rows_reach_the_disk_by_themselves_and_together(writer, monkeypatch, limit, value, rows):
    monkeypatch.setattr(f"analysis.writer.{limit}", value)
    append(writer, range(13))
    for stream in ("scalars", "examples_train"):
        assert len(list((writer.path / stream).glob("*.npz"))) == 12 // rows
        assert_holds(Run.open(writer.path), stream, list(range(12)))


def test_rows_wait_twenty_seconds_or_one_percent_of_the_run(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("analysis.writer.time.monotonic", lambda: clock[0])
    flushed = []
    with Writer.create(tmp_path / "a", header()) as writer:
        for second in range(10_000):
            clock[0] = float(second)
            before = writer._flushed
            writer.append("scalars", second, loss=0.0)
            if writer._flushed != before:
                flushed.append(second)
            del writer._streams["scalars"].rows[:-1]
    gaps = np.diff(flushed)
    assert flushed[:3] == [20, 40, 60]
    assert 95 <= gaps[-1] <= 101
    assert (gaps >= np.array(flushed[1:]) / 100).all()


def test_some_rows_are_read_without_the_other_segments(writer):
    for start in range(0, 30, 10):
        append(writer, range(start, start + 10))
        writer.flush()
    run = Run.open(writer.path)
    run.steps("examples_train")
    (writer.path / "examples_train" / "00000010-00000019.npz").unlink()
    everything = np.stack([examples(step)["margin"] for step in range(30)])
    np.testing.assert_array_equal(run.rows("examples_train", "margin", slice(-3, None)), everything[-3:])
    np.testing.assert_array_equal(run.rows("examples_train", "margin", [22, 3, 3]), everything[[22, 3, 3]])
    np.testing.assert_array_equal(run.rows("examples_train", "margin", slice(5, 0, -2)), everything[5:0:-2])
    assert run.rows("examples_train", "correct", slice(4, 4)).shape == (0, 6)
    with pytest.raises(RecordError, match=r"00000010-00000019.npz"):
        run.rows("examples_train", "margin", [15])
    with pytest.raises(SettingError, match="step 99: not recorded in stream examples_train"):
        run.rows("examples_train", "margin", [3, 99])


def test_chunks_are_the_column_in_pieces(writer, monkeypatch):
    for start in range(0, 30, 5):
        append(writer, range(start, start + 5))
        writer.flush()
    monkeypatch.setattr("analysis.run.CHUNK_BYTES", 250)
    run = Run.open(writer.path)
    chunks = list(run.chunks("examples_train", ["margin", "correct"]))
    # 5 rows of 6 * (4 + 1) bytes are 150: two segments a chunk.
    assert [len(steps) for steps, _ in chunks] == [10, 10, 10]
    np.testing.assert_array_equal(
        np.concatenate([columns["margin"] for _, columns in chunks]), run.column("examples_train", "margin")
    )


def test_an_unknown_stream_or_column_is_answered_with_what_there_is(writer):
    append(writer, range(2))
    writer.flush()
    run = Run.open(writer.path)
    with pytest.raises(SettingError, match=r"stream 'logits'.*examples_train, scalars"):
        run.steps("logits")
    with pytest.raises(SettingError, match=r"column 'margn'.*margin, correct, index, precise"):
        run.column("examples_train", "margn")
    with pytest.raises(SettingError, match=r"'labels_test': not in run a; recorded: nothing"):
        run.labels("test")


def test_an_empty_record_opens(writer):
    run = Run.open(writer.path)
    assert run.streams == []
    assert run.last_step == -1
    assert run.frame().empty
    assert "running" in run._repr_html_()


def test_labels_and_other_statics(writer):
    writer.static("labels_train", labels=np.array([2, 0, 1]))
    labels = Run.open(writer.path).labels("train")
    np.testing.assert_array_equal(labels, [2, 0, 1])
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"margin": np.zeros(4, np.float32)}, r"step 1: margin \(4,\) float32 does not fit .* margin \(3,\) float32"),
        ({"margin": np.zeros(3)}, "float64 does not fit"),
        ({}, "no columns does not fit"),
        ({"margin": np.zeros(3, np.float32), "more": 1.0}, "more .* does not fit"),
        ({"margin": np.array(["a", "b", "c"])}, "expected booleans, integers or floats"),
        ({"margin": [1j, 0, 0]}, "complex128"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(writer, columns, sentence):
    writer.append("examples_train", 0, margin=np.zeros(3, np.float32))
    with pytest.raises(RecordError, match=sentence):
        writer.append("examples_train", 1, **columns)
    writer.append("examples_train", 1, margin=np.ones(3, np.float32))
    writer.flush()
    assert len(Run.open(writer.path).steps("examples_train")) == 2


def test_a_row_that_does_not_fit_is_refused_after_reopening(tmp_path):
    with Writer.create(tmp_path / "a", header()) as writer:
        append(writer, range(3))
    with Writer.open(tmp_path / "a") as writer:
        with pytest.raises(RecordError, match="does not fit"):
            writer.append("examples_train", 3, margin=np.zeros(2))
        with pytest.raises(RecordError, match="step 2 after step 2"):
            writer.append("scalars", 2, loss_train=0)


@pytest.mark.parametrize("step", [4, 0, -1, 5.5])
def test_steps_grow(writer, step):
    append(writer, range(5))
    with pytest.raises(RecordError, match=f"step {step} after step 4"):
        writer.append("scalars", step, loss_train=0.0)


def test_scalars_are_numbers(writer):
    with pytest.raises(RecordError, match=r"column loss: expected a number, not shape \(2,\)"):
        writer.append("scalars", 0, loss=[1, 2])


@pytest.mark.parametrize("name", ["", "a b", "../x", "1a", "a-b", "checkpoints"])
def test_names_of_streams_are_plain(writer, name):
    with pytest.raises(RecordError, match="expected a letter"):
        writer.append(name, 0, loss=1.0)


@pytest.mark.parametrize("name", ["step", "previous", "columns", "file", "a/b"])
def test_names_of_columns_are_plain(writer, name):
    with pytest.raises(RecordError, match="expected a letter"):
        writer.append("scalars", 0, **{name: 1.0})


def test_truncating_drops_rows_and_checkpoints(writer):
    for start in range(0, 30, 10):
        append(writer, range(start, start + 10))
        writer.checkpoint(start + 9, f"state {start + 9}".encode(), keep=True)
    append(writer, range(30, 33))
    writer.truncate(14)
    run = Run.open(writer.path)
    for stream in run.streams:
        assert_holds(run, stream, list(range(15)))
    assert writer.last_checkpoint() == (9, b"state 9")
    append(writer, range(15, 20))
    writer.flush()
    assert_holds(Run.open(writer.path), "examples_train", list(range(20)))
    writer.truncate(-1)
    assert Run.open(writer.path).streams == []
    assert writer.last_checkpoint() is None
    writer.append("examples_train", 0, other=np.zeros(2))


def test_the_two_newest_checkpoints_stay_beside_those_kept(writer):
    for step in range(0, 60, 10):
        writer.checkpoint(step, b"%d" % step, keep=step in (0, 20))
    run = Run.open(writer.path)
    assert run.checkpoints() == [0, 20, 40, 50]
    assert run.checkpoint(20) == b"20"
    with pytest.raises(SettingError, match=r"checkpoint 30: .*\[0, 20, 40, 50\]"):
        run.checkpoint(30)


@pytest.mark.parametrize("damage", ["flip", "shorten", "empty"])
def test_a_damaged_checkpoint_is_passed_over(writer, damage):
    writer.checkpoint(1, b"one" * 50)
    writer.checkpoint(2, b"two" * 50)
    path = writer.path / "checkpoints" / "00000002.pt"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes({"flip": bytes(content), "shorten": content[:-7], "empty": b""}[damage])
    assert writer.last_checkpoint() == (1, b"one" * 50)
    with pytest.raises(RecordError, match=r"00000002.pt: damaged"):
        Run.open(writer.path).checkpoint(2)
    writer.checkpoint(3, b"three")
    assert writer.last_checkpoint() == (3, b"three")


def test_torch_reads_a_checkpoint_where_it_lies(writer):
    torch = pytest.importorskip("torch")
    import io

    payload = io.BytesIO()
    torch.save({"weights": torch.arange(4.0)}, payload)
    writer.checkpoint(7, payload.getvalue())
    assert Run.open(writer.path).checkpoint(7) == payload.getvalue()
    loaded = torch.load(writer.path / "checkpoints" / "00000007.pt")
    np.testing.assert_array_equal(loaded["weights"], np.arange(4))


def test_update_changes_meta(writer):
    writer.update(status="failed", error="it broke", seconds=np.float64(1.5), where=Path("x"))
    assert Run.open(writer.path).meta["error"] == "it broke"
    writer.update(status="running", error=None)
    run = Run.open(writer.path)
    assert run.status == "running"
    assert "error" not in run.meta
    assert run.meta["seconds"] == 1.5
    assert run.meta["where"] == "x"
    assert run.spec == header()["spec"]


def test_create_refuses_a_folder_that_holds_something(tmp_path):
    Writer.create(tmp_path / "a", header()).close()
    with pytest.raises(RecordError, match="exists already"):
        Writer.create(tmp_path / "a", header())
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="exists already"):
        Writer.create(tmp_path / "file", header())
    with pytest.raises(RecordError, match="Not a directory"):
        Writer.create(tmp_path / "file" / "b", header())
    (tmp_path / "empty").mkdir()
    Writer.create(tmp_path / "empty", header()).close()
    assert Run.open(tmp_path / "empty").status == "running"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "empty", "file"]


def test_open_needs_a_record(tmp_path):
    with pytest.raises(RecordError, match=r"b/run.json: cannot be read: No such file"):
        Writer.open(tmp_path / "b")
    with pytest.raises(RecordError, match=r"b/run.json: cannot be read: No such file"):
        Run.open(tmp_path / "b")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": "a"}', '{"id": 1, "spec": {}, "meta": {}}', "\xff"])
def test_a_damaged_header_is_named(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content.encode("latin1"))
    with pytest.raises(RecordError, match=r"run.json: damaged"):
        Run.open(tmp_path)


def test_a_closed_writer_writes_nothing(writer):
    append(writer, range(2))
    writer.close()
    writer.close()
    assert len(Run.open(writer.path).steps()) == 2
    for call in (
        lambda: writer.append("scalars", 5, loss=1),
        writer.flush,
        lambda: writer.update(status="x"),
        lambda: writer.truncate(0),
        lambda: writer.checkpoint(3, b""),
        lambda: writer.static("labels", labels=[1]),
    ):
        with pytest.raises(RecordError, match="this writer is closed"):
            call()

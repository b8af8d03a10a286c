"""Writer: makes the record of a run while it grows."""

import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from analysis.segments import (
    CHECKPOINTS,
    COLUMNS,
    PREVIOUS,
    SCALARS,
    STEP,
    Array,
    Lock,
    RecordError,
    is_kept,
    list_segments,
    list_streams,
    read_arrays,
    read_checkpoint,
    read_columns,
    read_header,
    read_steps,
    refusal,
    remove,
    remove_leftovers,
    seal,
    segment_of,
    sync_folder,
    write_arrays,
    write_atomically,
    write_json,
    write_segment,
)

FLUSH_BYTES = 16 * 2**20
FLUSH_ROWS = 500
FLUSH_SECONDS = 20.0
"""The streams are written out when one of them reaches this many bytes or rows, or after this time (1% of the
run's, once that is longer, so that a long run does not leave thousands of small files)."""

RESUMABLE = 2
"""Checkpoints kept to resume from, beside those kept for good; one more than needed, should it be damaged."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = {STEP, PREVIOUS, COLUMNS, "file", "allow_pickle"}
_KIND = "biuf"


class Writer:
    """The one process that writes a record. Made by `create` or `open`; a context manager that closes it.

    Attributes:
        path: folder of the record.
        meta: what run.json says beside the spec; change it with `update`.
    """

    def __init__(self, path: Path, lock: Lock, header: Mapping[str, Any]) -> None:
        self.path = path
        self._lock: Lock | None = lock
        self._header = dict(header)
        self.meta: dict[str, Any] = dict(header["meta"])
        self._streams: dict[str, _Stream] = {}
        self._latest = -1
        self._opened = self._flushed = time.monotonic()

    @classmethod
    def create(cls, path: str | Path, header: Mapping[str, Any]) -> "Writer":
        """Make the folder of a run and its run.json, with status "running".

        Args:
            path: the folder; its parents are made too.
            header: ``{"id": str, "spec": {...}, "meta": {...}}``.

        Raises:
            RecordError: the folder exists, cannot be made, or another process is making it.
        """
        path = Path(path)
        run_id = str(header["id"])
        header = {"id": run_id, "spec": header["spec"], "meta": {**header["meta"], "status": "running"}}
        # The folder appears under its own name only once it holds run.json, so no kill leaves half a record.
        draft = path.with_name(f".{path.name}.new")
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise RecordError(f"{path}: exists already; resume it, or choose another folder")
        try:
            draft.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(path, "cannot make the folder of the run", error) from error
        lock = Lock(draft, run_id)
        try:
            write_json(draft / "run.json", header)
            os.rename(draft, path)
            sync_folder(path.parent)
        except BaseException as error:
            lock.release()
            with suppress(OSError):
                shutil.rmtree(draft)
            if isinstance(error, OSError):
                raise refusal(path, "cannot make the folder of the run", error) from error
            raise
        return cls(path, lock, header)

    @classmethod
    def open(cls, path: str | Path) -> "Writer":
        """Go on with a record; what a killed writer left half written is removed.

        Raises:
            RecordError: no record there, a damaged one, or another process is writing it.
        """
        path = Path(path)
        lock = Lock(path, str(read_header(path)["id"]))
        try:
            # Read again under the lock: the last writer may have changed it meanwhile.
            writer = cls(path, lock, read_header(path))
            remove_leftovers(path)
            for name in list_streams(path):
                writer._streams[name] = _Stream.open(path / name)
        except BaseException:
            lock.release()
            raise
        return writer

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush and let another process write; closing twice is harmless.

        Raises:
            RecordError: the last rows could not be written; the lock is released all the same.
        """
        if self._lock is None:
            return
        try:
            self.flush()
        finally:
            self._lock.release()
            self._lock = None

    def append(self, stream: str, step: int, /, **columns: Any) -> None:
        """Add one row to a stream.

        It is on disk after the next `flush`. The writer flushes by itself about every 20 seconds and 16 MiB,
        between two steps, so that the streams on disk end at the same step.

        Args:
            stream: its name; made by its first row. ``"scalars"`` holds numbers, kept as float64, and may
                leave columns out (the same as NaN) or bring new ones; other streams keep the columns, shapes
                and dtypes of their first row.
            step: greater than the stream's last.
            columns: numbers, or arrays of booleans, integers or floats.

        Raises:
            RecordError: a row that does not fit the stream, or one that could not be written.
        """
        self._check_open()
        if stream not in self._streams:
            _check_name("stream", stream, {CHECKPOINTS})
            self._streams[stream] = _Stream(self.path / stream)
        if step > self._latest and self._is_due():
            self.flush()
        self._streams[stream].append(step, columns)
        self._latest = max(self._latest, step)

    def flush(self) -> None:
        """Write the rows not yet on disk, one segment a stream.

        Raises:
            RecordError: for example a full disk; the rows stay in memory and the record on disk readable.
        """
        self._check_open()
        for stream in self._streams.values():
            stream.flush()
        self._flushed = time.monotonic()

    def truncate(self, step: int) -> None:
        """Drop the rows and checkpoints after ``step``; -1 drops all.

        Raises:
            RecordError: a file could not be written or removed.
        """
        self.flush()
        # The counts in run.json only ever promise rows that are there, so they shrink first.
        rows = {name: min(stream.rows_until(step), stream.count) for name, stream in self._streams.items()}
        self._write_header(rows)
        for stream in self._streams.values():
            stream.truncate(step)
        self._latest = min(self._latest, step)
        remove([path for at, path in self._checkpoints() if at > step], self.path / CHECKPOINTS)

    def static(self, name: str, **arrays: Any) -> None:
        """Keep arrays that belong to the whole run, as ``<name>.npz``; for example labels_train.

        Raises:
            RecordError: a wrong name, or it could not be written.
        """
        self._check_open()
        _check_name("name", name)
        for array in arrays:
            _check_name("array", array, _TAKEN)
        plain = {key: _array(f"{name}, array {key}", value) for key, value in arrays.items()}
        write_arrays(self.path / f"{name}.npz", f"{name}.npz", plain)

    def checkpoint(self, step: int, payload: bytes, keep: bool = False) -> None:
        """Flush, then write ``checkpoints/<step>.pt``: the payload, followed by 33 bytes that certify it.

        torch.load reads the file as it is.

        Args:
            step: the payload belongs to it.
            payload: the serialised state.
            keep: for good; of the others only the newest two are kept.

        Raises:
            RecordError: it could not be written; the earlier checkpoints are as they were.
        """
        self.flush()
        _check_step("checkpoints", step, -1)
        folder = self.path / CHECKPOINTS
        _make_folder(folder)
        sealed = seal(payload, keep)
        write_atomically(folder / f"{step:08d}.pt", f"the checkpoint of step {step}", lambda file: file.write(sealed))
        passing = [path for at, path in self._checkpoints() if at <= step and not is_kept(path)]
        remove(passing[:-RESUMABLE], folder)

    def last_checkpoint(self) -> tuple[int, bytes] | None:
        """Step and payload of the newest checkpoint that is whole; None where there is none."""
        for step, path in reversed(self._checkpoints()):
            payload = read_checkpoint(path)
            if payload is not None:
                return step, payload
        return None

    def update(self, **meta: Any) -> None:
        """Change entries of ``meta`` in run.json; None removes one.

        Raises:
            RecordError: it could not be written; run.json is as it was.
        """
        self._check_open()
        changed = {key: value for key, value in {**self.meta, **meta}.items() if value is not None}
        self.meta, before = changed, self.meta
        try:
            self._write_header({name: stream.count for name, stream in self._streams.items()})
        except RecordError:
            self.meta = before
            raise

    def _is_due(self) -> bool:
        now = time.monotonic()
        patience = max(FLUSH_SECONDS, (now - self._opened) / 100)
        return now - self._flushed >= patience or any(
            stream.bytes >= FLUSH_BYTES or len(stream.rows) >= FLUSH_ROWS for stream in self._streams.values()
        )

    def _write_header(self, rows: Mapping[str, int]) -> None:
        self.meta["rows"] = dict(rows)
        write_json(self.path / "run.json", {**self._header, "meta": self.meta})

    def _checkpoints(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in (self.path / CHECKPOINTS).glob("[0-9]*.pt"))

    def _check_open(self) -> None:
        if self._lock is None:
            raise RecordError(f"{self.path}: this writer is closed")


class _Stream:
    """Rows of one stream: those on disk counted, the others held until `flush`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.bytes = 0
        self.rows: list[tuple[int, dict[str, Array]]] = []
        self._last = -1
        self._form: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    @classmethod
    def open(cls, folder: Path) -> "_Stream":
        stream = cls(folder)
        segments = list_segments(folder)
        stream.count = sum(len(steps) for steps in read_steps(segments))
        stream._last = segments[-1].last
        if not stream.is_scalars:
            columns = read_arrays(segments[0].path, read_columns(segments[0].path))
            stream._form = {name: (array.shape[1:], array.dtype) for name, array in columns.items()}
        return stream

    @property
    def is_scalars(self) -> bool:
        return self.folder.name == SCALARS

    def append(self, step: int, columns: Mapping[str, Any]) -> None:
        where = f"stream {self.folder.name}, step {step}"
        _check_step(self.folder.name, step, self.rows[-1][0] if self.rows else self._last)
        row = {name: _array(f"{where}, column {name}", value) for name, value in columns.items()}
        for name in row.keys() - self._form.keys():
            _check_name(f"{where}, column", name, _TAKEN)
        if self.is_scalars:
            for name, array in row.items():
                if array.shape != ():
                    raise RecordError(f"{where}, column {name}: expected a number, not shape {array.shape}")
            # NaN is what a number not measured reads as, so the two are kept alike.
            row = {name: array.astype(np.float64) for name, array in row.items() if not np.isnan(array)}
        else:
            form = {name: (array.shape, array.dtype) for name, array in row.items()}
            if not self._form:
                self._form = form
            elif form != self._form:
                raise RecordError(
                    f"{where}: {_describe(form)} does not fit the rows before it, {_describe(self._form)}"
                )
        self.rows.append((int(step), row))
        self.bytes += sum(array.nbytes for array in row.values())

    def flush(self) -> None:
        if not self.rows:
            return
        steps = np.array([step for step, _ in self.rows], np.int64)
        # A dict keeps the order in which the columns first came.
        names = list(dict.fromkeys(name for _, row in self.rows for name in row))
        absent = np.array(np.nan)
        arrays = {name: np.stack([row.get(name, absent) for _, row in self.rows]) for name in names}
        _make_folder(self.folder)
        write_segment(segment_of(self.folder, int(steps[0]), int(steps[-1])), self._last, steps, arrays)
        self._last = int(steps[-1])
        self.count += len(steps)
        self.rows, self.bytes = [], 0

    def rows_until(self, step: int) -> int:
        if self._last <= step:
            return self.count
        return sum(int((steps <= step).sum()) for steps in read_steps(list_segments(self.folder)))

    def truncate(self, step: int) -> None:
        """Drop the segments after ``step``, last first, and cut the one it falls in."""
        if self._last <= step:
            return
        self.count = self.rows_until(step)
        segments = list_segments(self.folder)
        remove([segment.path for segment in reversed(segments) if segment.first > step], self.folder)
        kept = [segment for segment in segments if segment.first <= step]
        self._last = kept[-1].last if kept else -1
        if self._last > step:
            arrays = read_arrays(kept[-1].path)
            stay = arrays[STEP] <= step
            steps = arrays[STEP][stay]
            columns = {str(name): arrays[str(name)][stay] for name in arrays[COLUMNS]}
            if self.is_scalars:
                # A number first measured in the rows that go leaves no column behind.
                columns = {name: values for name, values in columns.items() if not np.isnan(values).all()}
            self._last = int(steps[-1])
            cut = segment_of(self.folder, kept[-1].first, self._last)
            write_segment(cut, int(arrays[PREVIOUS]), steps, columns)
            remove([kept[-1].path], self.folder)
        if not kept:
            self._form = {}


def _array(where: str, value: Any) -> Array:
    """A copy of ``value``, which the caller may go on changing."""
    array = np.array(value)
    if array.dtype.kind not in _KIND:
        raise RecordError(f"{where}: {array.dtype} values; expected booleans, integers or floats")
    return array


def _check_name(what: str, name: str, taken: set[str] | frozenset[str] = frozenset()) -> None:
    if not _NAME.fullmatch(name) or name in taken:
        raise RecordError(
            f"{what} {name!r}: expected a letter, then letters, digits and underscores"
            + (f"; not {', '.join(sorted(taken))}" if taken else "")
        )


def _check_step(stream: str, step: int, last: int) -> None:
    if not isinstance(step, Integral) or step <= last:
        raise RecordError(f"stream {stream}: step {step} after step {last}; expected steps from 0 that grow")


def _make_folder(folder: Path) -> None:
    try:
        if not folder.is_dir():
            folder.mkdir()
            sync_folder(folder.parent)
    except OSError as error:
        raise refusal(folder, "cannot make the folder", error) from error


def _describe(form: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in form.items()) or "no columns"

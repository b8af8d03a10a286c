"""Files of a record: written whole or not at all, locked by one writer, checked when read."""

import hashlib
import json
import os
import re
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SCALARS = "scalars"
CHECKPOINTS = "checkpoints"
STEP = "step"
PREVIOUS = "previous"
COLUMNS = "columns"

_SEAL_BYTES = 1 + hashlib.sha256().digest_size
_SEGMENT = re.compile(r"(\d{8,})-(\d{8,})\.npz")
_TEMPORARY = ".tmp"
_LOCK = ".lock"
_LOCK_PATIENCE = 0.2
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    SyntaxError,
    TypeError,
)


class RecordError(RuntimeError):
    """A record that cannot be written, read or trusted; one sentence that names the file and says why."""


def write_atomically(path: Path, what: str, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write`` on a temporary file, sync it, and rename it to ``path``.

    Raises:
        RecordError: the system refused, for example a full disk; ``path`` is what it was before.
    """
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise refusal(path, f"cannot write {what}", error) from error


def refusal(path: Path, what: str, error: OSError) -> RecordError:
    """The sentence for what the system refused to do."""
    return RecordError(f"{path}: {what}: {error.strerror or error}")


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(paths: Iterable[Path], folder: Path) -> None:
    """Delete files of one folder, in this order.

    Raises:
        RecordError: the system refused.
    """
    try:
        for path in paths:
            path.unlink(missing_ok=True)
        if folder.is_dir():
            sync_folder(folder)
    except OSError as error:
        raise refusal(folder, "cannot remove files", error) from error


def remove_leftovers(record: Path) -> None:
    """Delete what a killed writer left in a record: files half written, and segments already replaced."""
    for folder in (record, *(path for path in record.iterdir() if path.is_dir())):
        current = {segment.path for segment in list_segments(folder)}
        remove(
            [
                path
                for path in folder.iterdir()
                if (path.name.startswith(".") and path.suffix == _TEMPORARY)
                or (_SEGMENT.fullmatch(path.name) and path not in current)
            ],
            folder,
        )


class Lock:
    """An exclusive lock on a record, which the system releases when its process ends, however it ends.

    Args:
        folder: the record.
        run_id: what errors call it.

    Raises:
        RecordError: another writer holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        # Here, so that records can be read where there is no fcntl.
        import fcntl

        try:
            self._file = open(folder / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise refusal(folder, "cannot lock the record", error) from error
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A reader that asks `is_locked` holds the lock for a moment.
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_PATIENCE / 20)
                    continue
                self._file.seek(0)
                owner = self._file.read().strip() or "unknown"
                self._file.close()
                raise RecordError(f"run {run_id} is being written by another process (pid {owner})") from None
            except OSError as error:
                self._file.close()
                raise refusal(folder, "cannot lock the record", error) from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let another writer in; releasing twice is harmless."""
        self._file.close()


def is_locked(folder: Path) -> bool:
    """Whether some process is writing the record."""
    import fcntl

    try:
        with open(folder / _LOCK, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; numpy numbers and paths are taken as numbers and strings."""
    text = json.dumps(content, indent=1, default=_plain)
    write_atomically(path, path.name, lambda file: file.write(text.encode()))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)


def read_header(folder: Path) -> dict[str, Any]:
    """What run.json says: ``id``, ``spec`` and ``meta``.

    Raises:
        RecordError: no record there, or a damaged one.
    """
    path = folder / "run.json"
    try:
        header = json.loads(path.read_bytes())
    except OSError as error:
        raise refusal(path, "cannot be read", error) from error
    except ValueError as error:
        raise RecordError(f"{path}: damaged: {error}") from error
    kinds = {"id": str, "spec": dict, "meta": dict}
    if not isinstance(header, dict) or not all(isinstance(header.get(key), kinds[key]) for key in kinds):
        raise RecordError(f"{path}: damaged: expected an object with id, spec and meta")
    return header


def write_arrays(path: Path, what: str, arrays: Mapping[str, Array]) -> None:
    """Write an npz atomically; the same arrays give the same bytes."""
    write_atomically(path, what, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def read_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, Array]:
    """Read arrays of an npz, all of them by default, and check their CRC.

    Raises:
        RecordError: the file is gone, damaged or lacks a name.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in (archive.files if names is None else names)}
    except OSError as error:
        raise refusal(path, "cannot be read", error) from error
    except _DAMAGE as error:
        raise RecordError(f"{path}: damaged: {error}") from error


class Segment(NamedTuple):
    """Some consecutive rows of a stream: first and last step, inclusive, and the file."""

    first: int
    last: int
    path: Path


def segment_of(folder: Path, first: int, last: int) -> Segment:
    """The segment of the stream in ``folder`` that holds steps ``first`` to ``last``."""
    return Segment(first, last, folder / f"{first:08d}-{last:08d}.npz")


def write_segment(segment: Segment, previous: int, steps: Array, columns: Mapping[str, Array]) -> None:
    """Write rows of a stream.

    Beside the columns stand the last step before the rows, and the names of the columns: the directory of an npz
    has no CRC, and a bit flipped there could hide a column.
    """
    what = f"steps {segment.first} to {segment.last} of stream {segment.path.parent.name}"
    frame = {STEP: steps, PREVIOUS: np.array(previous, np.int64), COLUMNS: np.array(list(columns), np.str_)}
    write_arrays(segment.path, what, {**frame, **columns})


def read_columns(path: Path) -> list[str]:
    """Names of a segment's columns, in the order they were written."""
    return [str(name) for name in read_arrays(path, (COLUMNS,))[COLUMNS]]


def list_segments(folder: Path) -> list[Segment]:
    """The segments of a stream in the order of their steps, from the names alone.

    Where two begin at the same step, a killed writer was replacing one by the other; the longer is taken.
    """
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError as error:
        raise refusal(folder, "cannot be read", error) from error
    longest: dict[int, Segment] = {}
    for match in filter(None, map(_SEGMENT.fullmatch, names)):
        segment = Segment(int(match[1]), int(match[2]), folder / match[0])
        if segment.first not in longest or longest[segment.first].last < segment.last:
            longest[segment.first] = segment
    return [longest[first] for first in sorted(longest)]


def list_streams(folder: Path) -> list[str]:
    """Names of the streams of a record that hold rows, sorted."""
    try:
        folders = sorted(
            entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise refusal(folder, "cannot be read", error) from error
    return [name for name in folders if name != CHECKPOINTS and list_segments(folder / name)]


def read_steps(segments: Iterable[Segment]) -> list[Array]:
    """The steps of each segment, having checked that no segment is missing between them.

    Raises:
        RecordError: a damaged or missing segment.
    """
    steps: list[Array] = []
    last = -1
    for segment in segments:
        arrays = read_arrays(segment.path, (STEP, PREVIOUS))
        if int(arrays[PREVIOUS]) != last:
            raise RecordError(
                f"{segment.path.parent}: the rows between steps {last} and {segment.first} are missing; "
                f"a segment that ended at step {int(arrays[PREVIOUS])} was removed or renamed"
            )
        last = segment.last
        steps.append(arrays[STEP])
    return steps


def seal(payload: bytes, keep: bool) -> bytes:
    """What a checkpoint's file holds: the payload, whether it is kept for good, and the SHA-256 of both."""
    body = payload + bytes([keep])
    return body + hashlib.sha256(body).digest()


def read_checkpoint(path: Path) -> bytes | None:
    """The payload of a checkpoint; None where the file is damaged or gone."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    body, digest = sealed[: 1 - _SEAL_BYTES], sealed[1 - _SEAL_BYTES :]
    return body[:-1] if hashlib.sha256(body).digest() == digest else None


def is_kept(path: Path) -> bool:
    """Whether a checkpoint is kept for good, from its last bytes alone."""
    try:
        with open(path, "rb") as file:
            file.seek(-_SEAL_BYTES, os.SEEK_END)
            return file.read(1) == b"\x01"
    except OSError:
        return False

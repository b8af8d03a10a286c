"""Run: reads the record of one run."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import metrics
from analysis.plugins import SettingError
from analysis.segments import (
    CHECKPOINTS,
    SCALARS,
    STEP,
    Array,
    RecordError,
    Segment,
    is_locked,
    list_segments,
    list_streams,
    read_arrays,
    read_checkpoint,
    read_columns,
    read_header,
    read_steps,
)

if TYPE_CHECKING:
    import xarray

CHUNK_BYTES = 4 * 2**20
"""How much of a stream is in memory at a time while a metric is computed."""


class Run:
    """A record, read as it was when opened; open it again to see what has been written since.

    Nothing but run.json and the names of the segments is read before a column is asked for.

    Attributes:
        path: the folder.
        id: name of the run.
        spec: dataset, model, loss, optimizer ``{"name", "lr", ...}``, steps, seed, probes.
        meta: status, versions, data ``{"classes", "n_train", "fingerprint", ...}``, times.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.id: str = header["id"]
        self.spec: dict[str, Any] = header["spec"]
        self.meta: dict[str, Any] = header["meta"]
        self._segments = {name: list_segments(path / name) for name in list_streams(path)}
        self._steps: dict[str, list[Array]] = {}
        self._columns: dict[str, list[str]] = {}
        self._scalars: pd.DataFrame | None = None
        self._metrics: dict[tuple[str, str, str], pd.Series] = {}

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Read a record, finished or not.

        Raises:
            RecordError: no record there, or a damaged run.json.
        """
        path = Path(path)
        return cls(path, read_header(path))

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.status}, step {self.last_step})"

    def _repr_html_(self) -> str:
        rows = {
            "status": self.status,
            "last step": self.last_step,
            **{f"spec.{key}": value for key, value in self.spec.items()},
            **{f"stream {name}": self._describe(name) for name in self.streams},
        }
        table = pd.DataFrame({"": [str(value) for value in rows.values()]}, index=list(rows))
        return f"<b>{escape(self.id)}</b>{table.to_html(escape=True)}"

    @property
    def status(self) -> str:
        """ "running", "finished", "interrupted", "failed" or "diverged", as last written; see `writing`."""
        return str(self.meta["status"])

    @property
    def writing(self) -> bool:
        """Whether some process is writing the record now; a killed run is "running" with nobody writing."""
        return is_locked(self.path)

    @property
    def streams(self) -> list[str]:
        """Names of the streams that hold rows, sorted."""
        return list(self._segments)

    @property
    def last_step(self) -> int:
        """The last recorded step; -1 where there is none."""
        return max((segments[-1].last for segments in self._segments.values()), default=-1)

    def setting(self, key: str) -> Any:
        """A setting of the spec by its dotted key, for example ``"optimizer.lr"``; None where it has none."""
        value: Any = self.spec
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def steps(self, stream: str = SCALARS) -> Array:
        """The steps at which a stream was recorded, int64 [rows], increasing.

        Raises:
            SettingError: no such stream.
            RecordError: a damaged or missing segment.
        """
        return np.concatenate(self._index(stream))

    def columns(self, stream: str) -> list[str]:
        """Names of a stream's columns, in the order they first came."""
        if stream not in self._columns:
            self._index(stream)
            segments = self._segments[stream]
            # Scalars may come and go; the other streams keep the columns of their first row.
            names = (
                name
                for segment in (segments if stream == SCALARS else segments[:1])
                for name in read_columns(segment.path)
            )
            self._columns[stream] = list(dict.fromkeys(names))
        return list(self._columns[stream])

    def column(self, stream: str, name: str) -> Array:
        """A whole column, [rows, ...], in the dtype it was recorded in; scalars are float64 with NaN.

        Raises:
            SettingError: no such stream or column.
            RecordError: a damaged or missing segment.
        """
        return self.rows(stream, name)

    def rows(self, stream: str, name: str, which: slice | Sequence[int] | Array = slice(None)) -> Array:
        """Some rows of a column; segments that hold none of them are not read.

        Args:
            stream: for example ``"examples_train"``.
            name: the column.
            which: a slice of row positions, or a list of steps in any order.

        Returns:
            [rows asked for, ...].

        Raises:
            SettingError: no such stream, column or step.
            RecordError: a damaged or missing segment.
        """
        index = self._index(stream)
        self._check_columns(stream, (name,))
        positions = self._positions(stream, which)
        bounds = np.cumsum([0, *map(len, index)])
        where = np.searchsorted(bounds, positions, side="right") - 1
        result: Array | None = None
        for i in np.unique(where) if len(positions) else [0]:
            values = self._read(stream, self._segments[stream][i], (name,))[name]
            if result is None:
                result = np.empty((len(positions), *values.shape[1:]), values.dtype)
            mine = where == i
            result[mine] = values[positions[mine] - bounds[i]]
        assert result is not None
        return result

    def chunks(self, stream: str, names: Sequence[str]) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Go through a stream with little of it in memory.

        Yields:
            Steps [rows] and columns by name, each [rows, ...], of consecutive rows, about 4 MiB at a time.
        """
        self._check_columns(stream, names)
        steps: list[Array] = []
        parts: list[dict[str, Array]] = []
        last = len(self._index(stream)) - 1
        for i, segment in enumerate(self._segments[stream]):
            steps.append(self._index(stream)[i])
            parts.append(self._read(stream, segment, names))
            if i == last or sum(a.nbytes for part in parts for a in part.values()) >= CHUNK_BYTES:
                yield np.concatenate(steps), {n: np.concatenate([part[n] for part in parts]) for n in names}
                steps, parts = [], []

    def frame(self) -> pd.DataFrame:
        """The scalars: one row per recorded step, indexed by it, with the column ``step`` first.

        Columns not measured at a step are NaN there. Empty where nothing was recorded yet.
        """
        if self._scalars is None:
            if SCALARS not in self.streams:
                return pd.DataFrame({STEP: np.array([], np.int64)})
            steps, columns = zip(*self.chunks(SCALARS, self.columns(SCALARS)), strict=True)
            whole = {name: np.concatenate([part[name] for part in columns]) for name in self.columns(SCALARS)}
            index = np.concatenate(steps)
            self._scalars = pd.DataFrame({STEP: index, **whole}, index=index)
        return self._scalars.copy()

    def labels(self, split: str) -> Array:
        """Labels of a split's samples, int64 [n], in the order of its streams."""
        return read_arrays(self._static(f"labels_{split}"), ("labels",))["labels"]

    def static(self, name: str) -> dict[str, Array]:
        """Arrays kept once for the whole run, by name.

        Raises:
            SettingError: no such file.
            RecordError: it is damaged.
        """
        return read_arrays(self._static(name))

    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints, increasing."""
        return sorted(int(path.stem) for path in (self.path / CHECKPOINTS).glob("[0-9]*.pt"))

    def checkpoint(self, step: int) -> bytes:
        """The state saved at a step, as torch.save wrote it.

        Raises:
            SettingError: no checkpoint of that step.
            RecordError: it is damaged.
        """
        if step not in self.checkpoints():
            raise SettingError(f"checkpoint {step}: not in run {self.id}; saved: {self.checkpoints()}")
        path = self.path / CHECKPOINTS / f"{step:08d}.pt"
        payload = read_checkpoint(path)
        if payload is None:
            raise RecordError(f"{path}: damaged: its SHA-256 does not match")
        return payload

    def metric(self, name: str, split: str = "train", **options: Any) -> pd.Series:
        """A series over steps: a recorded scalar, or a metric computed from the samples of a split.

        Args:
            name: a scalar (``"lambda_max"``; ``"loss"`` is the column loss_<split>), or a name from
                `metrics.METRICS`.
            split: whose samples; of no matter to a scalar of the whole run.
            options: for the function of the metric, for example ``bins=30`` for ``"ece"``.

        Returns:
            float64, indexed by step, named ``name``; steps without a value are left out.

        Raises:
            SettingError: an unknown name or option, or what it needs was not recorded.
            RecordError: a damaged or missing segment.
        """
        key = (name, split, repr(sorted(options.items())))
        if key not in self._metrics:
            self._metrics[key] = metrics.series(self, name, split, options)
        return self._metrics[key].copy()

    def to_xarray(self) -> "xarray.Dataset":
        """All streams as one lazy dataset: a value is read when it is used.

        A column of the stream examples_train becomes ``examples_train_<column>``, with dimensions
        step_examples_train and sample_train; scalars keep their names, with dimension step.

        Raises:
            SettingError: xarray is not installed.
        """
        try:
            from analysis.lazy import dataset
        except ImportError:
            raise SettingError("to_xarray: needs xarray; install margintail[notebook]") from None
        return dataset(self)

    def _describe(self, stream: str) -> str:
        try:
            return f"{len(self.steps(stream))} rows: {', '.join(self.columns(stream))}"
        except RecordError as error:
            return str(error)

    def _static(self, name: str) -> Path:
        path = self.path / f"{name}.npz"
        if not path.is_file():
            known = ", ".join(sorted(other.stem for other in self.path.glob("*.npz"))) or "nothing"
            raise SettingError(f"static {name!r}: not in run {self.id}; recorded: {known}")
        return path

    def _index(self, stream: str) -> list[Array]:
        """Steps by segment, verified once."""
        if stream in self._steps:
            return self._steps[stream]
        try:
            self._steps[stream] = self._verify(stream)
        except RecordError:
            # A listing may miss a file that appeared meanwhile, and a resumed run removes some: look again.
            self.meta = read_header(self.path)["meta"]
            if (self.path / stream).is_dir():
                self._segments[stream] = list_segments(self.path / stream)
            self._steps[stream] = self._verify(stream)
        return self._steps[stream]

    def _verify(self, stream: str) -> list[Array]:
        promised = self.meta.get("rows", {}).get(stream, 0)
        if not self._segments.get(stream) and not promised:
            known = ", ".join(self.streams) or "nothing yet"
            raise SettingError(f"stream {stream!r}: not in run {self.id}; recorded: {known}")
        steps = read_steps(self._segments.get(stream, ()))
        found = sum(map(len, steps))
        if found < promised:
            raise RecordError(
                f"{self.path / stream}: holds {found} rows, but run.json counted {promised}; "
                f"the last segments were removed"
            )
        return steps

    def _check_columns(self, stream: str, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.columns(stream):
                raise SettingError(
                    f"column {name!r}: not in stream {stream} of run {self.id}; recorded: "
                    f"{', '.join(self.columns(stream))}"
                )

    def _positions(self, stream: str, which: slice | Sequence[int] | Array) -> Array:
        steps = self.steps(stream)
        if isinstance(which, slice):
            return np.arange(len(steps))[which]
        asked = np.asarray(which, np.int64)
        positions = np.searchsorted(steps, asked)
        known = steps[np.minimum(positions, len(steps) - 1)] == asked
        if not known.all():
            raise SettingError(f"step {asked[~known][0]}: not recorded in stream {stream} of run {self.id}")
        return positions

    def _read(self, stream: str, segment: Segment, names: Sequence[str]) -> dict[str, Array]:
        if stream != SCALARS:
            return read_arrays(segment.path, names)
        there = set(read_columns(segment.path))
        arrays = read_arrays(segment.path, [STEP, *(name for name in names if name in there)])
        absent = np.full(len(arrays[STEP]), np.nan)
        return {name: arrays.get(name, absent) for name in names}

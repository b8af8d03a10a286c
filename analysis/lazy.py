"""A record as an xarray dataset that reads a value when it is used. Needs xarray, which is an extra."""

import json
from typing import Any

import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from analysis.run import Run
from analysis.segments import SCALARS, STEP, Array


class _Column(BackendArray):
    """A column of a stream, on disk until it is indexed."""

    def __init__(self, run: Run, stream: str, name: str) -> None:
        self.run, self.stream, self.name = run, stream, name
        first = run.rows(stream, name, slice(0, 1))
        self.shape = (len(run.steps(stream)), *first.shape[1:])
        self.dtype = first.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> Array:
        row, *rest = key
        if isinstance(row, slice):
            return self.run.rows(self.stream, self.name, row)[(slice(None), *rest)]
        position = int(row) % self.shape[0]
        return self.run.rows(self.stream, self.name, slice(position, position + 1))[(0, *rest)]


def dataset(run: Run) -> xarray.Dataset:
    """See `Run.to_xarray`."""
    variables: dict[str, xarray.Variable] = {}
    coordinates: dict[str, Array] = {}
    for stream in run.streams:
        row = STEP if stream == SCALARS else f"{STEP}_{stream}"
        coordinates[row] = run.steps(stream)
        for name in run.columns(stream):
            if stream == SCALARS:
                variables[name] = xarray.Variable((row,), run.frame()[name].to_numpy())
                continue
            column = _Column(run, stream, name)
            dims = (row, *_dims(stream, name, len(column.shape) - 1))
            variables[f"{stream}_{name}"] = xarray.Variable(dims, indexing.LazilyIndexedArray(column))
    attributes = {"id": run.id, "status": run.status, "spec": json.dumps(run.spec)}
    return xarray.Dataset(variables, coordinates, attributes)


def _dims(stream: str, name: str, count: int) -> list[str]:
    """Names of the axes of a row: streams of a split share its samples, and all logits their classes."""
    kind, _, split = stream.partition("_")
    named = {"examples": [f"sample_{split}"], "logits": [f"sample_{split}", "class"]}.get(kind, [])[:count]
    return [*named, *(f"{stream}_{name}_{axis}" for axis in range(len(named), count))]

"""Specs: TOML with a grid becomes frozen, validated RunSpecs, each with an id made from its resolved settings."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from analysis.after import After
from analysis.plugins import Count, Natural, SettingError, validate
from runners.augmentation import Augment
from runners.datasets import DATASETS, Dataset
from runners.losses import LOSSES, Loss
from runners.models import MODELS, Model
from runners.optimizers import OPTIMIZERS, Optimizer
from runners.probes import PROBES, Probe, with_checkpoints

EXPERIMENTS = Path(__file__).parent / "experiments"
"""The presets: one TOML file each."""

DEFAULTS: dict[str, Any] = {
    "model": {"name": "mlp"},
    "loss": {"name": "ce"},
    "probes": {"examples": {}, "gn_sharpness": {}, "norms": {}},
}


class RunSpec(BaseModel):
    """One training run, resolved: every setting has its value.

    Attributes:
        dataset: where the samples come from, and which of them.
        model: the network.
        loss: the training loss.
        optimizer: the optimizer with its step size.
        steps: optimizer steps; observations are made before each step and after the last.
        seed: seeds initialisation and the order of batches. The choice of samples has a seed of its own.
        device: "auto" (CUDA if there is one), or a torch device such as "cpu" or "cuda:1".
        dtype: arithmetic of training; probes compute margins in float64 whatever this is.
        precision: products of float32 numbers in convolutions and matrices: "float32", or "tf32", which rounds their
            factors to 10 bits behind the point on a CUDA device.
        threads: torch threads of the run. A record is reproduced bit for bit at the same count.
        probes: what is recorded, and how often.
        augment: random crops and flips of the images of a batch; None, as in the paper, trains on them as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    dataset: Dataset
    model: Model
    loss: Loss
    optimizer: Optimizer
    steps: Count
    seed: Natural = 0
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["float32", "tf32"] = "float32"
    threads: Count = 1
    probes: dict[str, Probe]
    augment: Augment | None = None

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "RunSpec":
        """Validate plain tables such as those of a TOML file.

        Raises:
            SettingError: names the first wrong setting, its value and what is accepted.
        """
        settings = {**DEFAULTS, **settings}
        for key in ("dataset", "optimizer"):
            if key not in settings:
                raise SettingError(f"{key}: this setting is required, such as {key} = {{ name = ... }}")
        probes = settings["probes"]
        if not isinstance(probes, Mapping):
            raise SettingError(f"probes = {probes!r}: expected a table such as {{ examples = {{ every = 10 }} }}")
        parts: dict[str, Any] = {
            "dataset": DATASETS.build(settings["dataset"], "dataset"),
            "model": MODELS.build(settings["model"], "model"),
            "loss": LOSSES.build(settings["loss"], "loss"),
            "optimizer": OPTIMIZERS.build(settings["optimizer"], "optimizer"),
            "probes": with_checkpoints(build_probes(probes)),
        }
        if settings.get("augment") is not None:
            parts["augment"] = _augment(settings["augment"], parts["optimizer"])
        return validate(cls, {**settings, **parts})

    @classmethod
    def from_toml(cls, path: str | Path) -> "RunSpec":
        """The one run of a TOML file; for a file with a grid see `read_experiment`.

        Raises:
            SettingError: as in `from_dict`, or a file that spans several runs.
        """
        specs = read_experiment(path)
        if len(specs) != 1:
            raise SettingError(f"{path}: spans {len(specs)} runs; read it with runners.spec.read_experiment")
        return specs[0]

    def table(self) -> dict[str, Any]:
        """The resolved spec as plain JSON values."""
        return {
            "dataset": self.dataset.table(),
            "model": self.model.table(),
            "loss": self.loss.table(),
            "optimizer": self.optimizer.table(),
            **self.model_dump(mode="json", include={"steps", "seed", "device", "dtype", "threads"}),
            "probes": {name: probe.model_dump(mode="json") for name, probe in self.probes.items()},
            # Left out where they are off, so that runs keep the ids they had before there were such settings.
            **({} if self.precision == "float32" else {"precision": self.precision}),
            **({} if self.augment is None else {"augment": self.augment.model_dump(mode="json")}),
        }

    @property
    def id(self) -> str:
        """Readable parts and a hash of the resolved spec, such as ``gd-lr0.0667-s0-1f3a9c2e``."""
        digest = hashlib.sha256(json.dumps(self.table(), sort_keys=True).encode()).hexdigest()[:8]
        loss = "" if self.loss.name == "ce" else f"-{_short(self.loss.name)}"
        return f"{_short(self.optimizer.name)}-lr{self.optimizer.lr:g}{loss}-s{self.seed}-{digest}"


def _augment(table: Any, optimizer: Optimizer) -> Augment:
    if not isinstance(table, Mapping):
        raise SettingError(f"augment = {table!r}: expected a table such as {{ crop = 4, flip = true }}")
    augment = validate(Augment, table, "augment")
    if optimizer.batch_size is None:
        raise SettingError(
            f"augment = {augment.model_dump()}: {optimizer.name} steps on the whole training set, which never changes; "
            "expected an optimizer with a batch_size"
        )
    return augment


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def build_probes(tables: Mapping[str, Any]) -> dict[str, Probe]:
    """Probes from a table of tables, ``{"examples": {"every": 10}}``."""
    probes = {}
    for name, settings in tables.items():
        if not isinstance(settings, Mapping):
            raise SettingError(
                f"probes.{name} = {settings!r}: expected a table such as {{ every = 10 }}, or {{}} for the defaults"
            )
        probes[name] = validate(PROBES.get(name, f"probes.{name}"), settings, f"probes.{name}")
    return probes


def read_experiment(path: str | Path, overrides: Mapping[str, Any] | None = None) -> list[RunSpec]:
    """All runs of an experiment file, in the order of its grid, without repetitions.

    A ``[grid]`` table maps dotted settings to lists of values and spans their product; several ``[[grid]]`` tables
    are several products over the same base. A table ``[after]`` is no part of any run; see `after`.

    Args:
        path: a TOML file.
        overrides: dotted settings that replace the file's, such as ``{"steps": 20}``.

    Raises:
        SettingError: a file that cannot be read or parsed, or a wrong setting (see `RunSpec.from_dict`).
    """
    settings = _read(path)
    settings.pop("after", None)
    grids = settings.pop("grid", {})
    grids = grids if isinstance(grids, list) else [grids]
    specs: dict[str, RunSpec] = {}
    for grid in grids:
        for point in _points(grid):
            spec = RunSpec.from_dict(_placed(settings, {**point, **(overrides or {})}))
            specs.setdefault(spec.id, spec)
    return list(specs.values())


def after(path: str | Path, specs: Sequence[RunSpec] = ()) -> After:
    """What an experiment file asks for after its runs, in its table ``[after]``; nothing where it has none.

    Args:
        path: a TOML file.
        specs: the file's runs; each must record what it takes.

    Raises:
        SettingError: a wrong setting; a run that would not record its logits, or calibrators without a validation
            split to fit them on.
    """
    found = After.from_dict(_read(path).get("after", {}))
    for spec in specs if found else ():
        if "logits" not in spec.probes:
            raise SettingError(f"after: run {spec.id} would not record its logits; expected probes.logits beside it")
        if found.calibrators and not spec.dataset.validation_size:
            raise SettingError(
                f"after.calibrators: run {spec.id} has no validation split to fit them on; "
                "expected dataset.validation_size of 1 or more"
            )
    return found


def _read(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: not valid TOML ({error})") from None


def _points(grid: Any) -> list[dict[str, Any]]:
    if not isinstance(grid, Mapping):
        raise SettingError(f"grid = {grid!r}: expected a table of lists, such as seed = [0, 1, 2]")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SettingError(f"grid.{key} = {values!r}: expected a list of at least one value")
    # Whole tables are placed before the dotted settings inside them.
    keys = sorted(grid, key=lambda key: key.count("."))
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(grid[key] for key in keys))]


def _placed(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``settings`` in which each dotted key of ``values`` is set."""
    placed: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    for key, value in values.items():
        *folders, last = key.split(".")
        table = placed
        for depth, folder in enumerate(folders, 1):
            table = table.setdefault(folder, {})
            if not isinstance(table, dict):
                raise SettingError(f"{'.'.join(folders[:depth])} = {table!r}: expected a table, because {key!r} is set")
        table[last] = json.loads(json.dumps(value))
    return placed

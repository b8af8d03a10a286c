"""Recorder: the probes attached to any training loop, ours or a user's."""

import io
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from analysis.calibration import ece
from analysis.plugins import SettingError
from analysis.record import Writer
from runners.losses import LOSSES, Loss
from runners.observation import Observation, Samples
from runners.passes import in_evaluation
from runners.probes import PROBES, Probe, with_checkpoints
from runners.probes.checkpoints import Checkpoints
from runners.probes.performance import Performance

PACKAGES = ("margintail", "torch", "torchvision", "numpy", "scipy", "pandas")


class Pair(NamedTuple):
    """Inputs x [n, ...] and labels y, int64 [n]."""

    x: Tensor
    y: Tensor


class Diverged(RuntimeError):
    """The training loss is not finite any more; the record ends at the step before."""


class Recorder:
    """Writes a run record while somebody trains.

    ::

        with Recorder("data/runs/mine", model, train=(x, y), test=(u, v), probes=["examples", "gn_sharpness"]) as r:
            for step in range(1000):
                r.observe(step)
                ...  # your own update

    Args:
        path: folder of the record, which must not exist yet.
        model: the network; its modes and gradients are left as they were found.
        train: inputs [n, ...] and labels int64 [n], on the model's device.
        test: the same, held out.
        validation: the same, for model selection and post-hoc calibration.
        loss: name of a loss, or a `Loss`; what is being minimised.
        probes: names of probes, a table of their settings, or probes by name.
        spec: what else describes the run, such as ``{"optimizer": {"name": "mine", "lr": 0.1}, "seed": 0}``.
        meta: facts for run.json, such as ``{"data": {"label": "my data"}}``.
        chunk: samples per forward pass; None takes each split whole.

    Raises:
        SettingError: wrong labels, an unknown probe or loss.
        RecordError: the folder exists or cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor] | None = None,
        validation: tuple[Tensor, Tensor] | None = None,
        loss: str | Loss = "ce",
        probes: Iterable[str] | Mapping[str, Mapping[str, Any] | Probe] = (
            "examples",
            "gn_sharpness",
            "norms",
        ),
        spec: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        chunk: int | None = None,
    ) -> None:
        self.loss = LOSSES.build({"name": loss}, "loss") if isinstance(loss, str) else loss
        self._setup(model, _splits(train, test, validation), with_checkpoints(_probes(probes)), chunk)
        spec = {
            "optimizer": {"name": "unnamed"},
            "seed": 0,
            "model": {"name": type(model).__name__},
            **(spec or {}),
            "loss": self.loss.table(),
            "probes": {name: probe.model_dump(mode="json") for name, probe in self.probes.items()},
        }
        self.writer = Writer.create(path, header(Path(path).name, spec, self._facts(meta or {})))
        for split, samples in self.splits.items():
            self.writer.static(f"labels_{split}", labels=samples.y.cpu().numpy())

    @classmethod
    def reopen(
        cls,
        writer: Writer,
        model: nn.Module,
        splits: Mapping[str, Samples],
        loss: Loss,
        probes: Mapping[str, Probe],
        chunk: int | None,
    ) -> "Recorder":
        """A recorder that goes on with an opened record."""
        recorder = cls.__new__(cls)
        recorder.loss = loss
        recorder._setup(model, splits, probes, chunk)
        recorder.writer = writer
        return recorder

    def _setup(
        self, model: nn.Module, splits: Mapping[str, Samples], probes: Mapping[str, Probe], chunk: int | None
    ) -> None:
        self.model = model
        self.splits = splits
        self.probes = probes
        self.chunk = chunk
        self.memory: dict[str, dict[str, Any]] = {name: {} for name in probes}
        self.state: Callable[[], dict[str, Any]] = dict
        self._latest: Mapping[str, Mapping[str, Any]] = {}
        self._performance = Performance()
        self._started = time.monotonic()

    def _facts(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        data = {"classes": classes(self.model, self.splits["train"].x), **meta.get("data", {})}
        data |= {f"n_{split}": len(samples.y) for split, samples in self.splits.items()}
        for split, samples in self.splits.items():
            highest = int(samples.y.max())
            if int(samples.y.min()) < 0 or highest >= data["classes"]:
                raise SettingError(
                    f"{split} labels reach {highest}: expected 0 to {data['classes'] - 1}, as the model has "
                    f"{data['classes']} outputs"
                )
        count = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        device = next(self.model.parameters()).device
        return {"parameters": count, "device": device_name(device), **meta, "data": data}

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close("finished")
        elif isinstance(error, KeyboardInterrupt):
            self.close("interrupted")
        else:
            self.close("failed", error=f"{type(error).__name__}: {error}")

    def observe(self, step: int, *, last: bool = False, keeps_graph: bool = False) -> Observation | None:
        """Measure what is due at this step, before its update.

        Args:
            step: updates made so far; must grow from call to call.
            last: measure everything, as this is the last step.
            keeps_graph: the caller will use the observation's gradient for its own update.

        Returns:
            The observation, or None where no probe was due.

        Raises:
            Diverged: the training loss is not finite.
        """
        due = {
            name: probe
            for name, probe in self.probes.items()
            if not isinstance(probe, Checkpoints) and (last or probe.due(step))
        }
        if not due:
            return None
        needs_gradient = keeps_graph or any(probe.needs_gradient for probe in due.values())
        observation = Observation(
            step, self.model, self.loss, self.splits, keeps_graph=needs_gradient, chunk=self.chunk
        )
        streams: dict[str, dict[str, Any]] = {"scalars": {}}
        with in_evaluation(self.model):
            _merge(streams, self._performance.measure(observation, {}))
            if not np.isfinite(streams["scalars"]["loss_train"]):
                raise Diverged(f"the training loss became {streams['scalars']['loss_train']} at step {step}")
            for name, probe in due.items():
                _merge(streams, probe.measure(observation, self.memory[name]))
        for stream, columns in streams.items():
            self.writer.append(stream, step, **columns)
        self._latest = {**self._latest, **streams}
        return observation

    def latest(self) -> dict[str, float]:
        """Training loss, ECE (15 bins) and sharpness at the last step where each was measured."""
        scalars = self._latest.get("scalars", {})
        found = {"loss": scalars.get("loss_train"), "sharpness": scalars.get("lambda_max")}
        if "examples_train" in self._latest:
            columns = self._latest["examples_train"]
            confidence = -np.expm1(columns["log_one_minus_confidence"].astype(np.float64))
            found["ece"] = float(ece(confidence, columns["correct"]))
        return {name: value for name, value in found.items() if value is not None}

    def checkpoint(self, step: int, *, force: bool = False) -> None:
        """Save weights, the probes' memory and what `state` returns, where due or forced."""
        settings = self.probes["checkpoints"]
        assert isinstance(settings, Checkpoints)
        due = settings.due(step)
        if not (due or force):
            return
        payload = io.BytesIO()
        torch.save({"step": step, "model": self.model.state_dict(), "memory": self.memory, **self.state()}, payload)
        self.writer.checkpoint(step, payload.getvalue(), keep=due and settings.keep == "all")

    def close(self, status: str, **meta: Any) -> None:
        """Flush, set the status in run.json and release the record."""
        try:
            self.writer.flush()
            seconds = float(self.writer.meta.get("seconds", 0.0)) + time.monotonic() - self._started
            self.writer.update(status=status, seconds=round(seconds, 3), ended=timestamp(), **meta)
        finally:
            self.writer.close()


def _merge(streams: dict[str, dict[str, Any]], reading: Mapping[str, Mapping[str, Any]]) -> None:
    for stream, columns in reading.items():
        streams.setdefault(stream, {}).update(columns)


def _splits(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor] | None, validation: tuple[Tensor, Tensor] | None
) -> dict[str, Pair]:
    splits = {"train": train, "test": test, "validation": validation}
    pairs = {name: Pair(*pair) for name, pair in splits.items() if pair is not None}
    for name, (x, y) in pairs.items():
        if len(x) != len(y) or len(y) == 0:
            raise SettingError(f"{name}: {len(x)} inputs and {len(y)} labels; expected as many of one as of the other")
        if y.dtype != torch.int64:
            raise SettingError(f"{name} labels are {y.dtype}: expected torch.int64")
    return pairs


def _probes(probes: Iterable[str] | Mapping[str, Mapping[str, Any] | Probe]) -> dict[str, Probe]:
    tables = probes if isinstance(probes, Mapping) else {name: {} for name in probes}
    return {
        name: table if isinstance(table, Probe) else PROBES.build({"name": name, **table}, f"probes.{name}")
        for name, table in tables.items()
    }


def classes(model: nn.Module, x: Tensor) -> int:
    """Number of the model's outputs, from one sample in evaluation mode."""
    with in_evaluation(model), torch.no_grad():
        return int(model(x[:1]).shape[-1])


def header(run_id: str, spec: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says at the start of a run."""
    return {
        "id": run_id,
        "spec": dict(spec),
        "meta": {"started": timestamp(), "versions": versions(), "commit": commit(), **facts},
    }


def timestamp() -> str:
    """Now, in UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> dict[str, Any] | None:
    """The commit of the checkout this code runs from, and whether it was changed; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != folder.parent:
            return None
        return {"id": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: torch.device) -> str:
    """What ran the numbers, such as "cpu" or the name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

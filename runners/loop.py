"""The one training loop."""

import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analysis.plugins import SettingError
from analysis.record import Run, Writer
from runners.arithmetic import arithmetic, arranged, pick_device
from runners.batches import Batches
from runners.datasets import Data, Dataset
from runners.observation import Observation, full_gradient, mode_matters
from runners.optimizers import Objective
from runners.recorder import Diverged, Recorder
from runners.spec import RunSpec

Report = Callable[[int, Recorder], None]


def train(
    spec: RunSpec,
    out: str | Path,
    *,
    report: Report | None = None,
    stop: Callable[[], bool] | None = None,
) -> Path:
    """Train one run and record it.

    Args:
        spec: the resolved spec.
        out: folder of the experiment; the record is ``out/<spec.id>``.
        report: called after each step with the step and the recorder, for progress.
        stop: asked before each step; True ends the run cleanly, to be resumed.

    Returns:
        The folder of the record.

    Raises:
        SettingError: settings that do not fit the data or this machine; nothing is written.
        RecordError: the record exists or cannot be written.
        Diverged: the loss is not finite; the record up to there is kept, with status "diverged".
    """
    with arithmetic(spec):
        training = Training(spec)
        path = Path(out) / spec.id
        data = training.data
        recorder = Recorder(
            path,
            training.model,
            **{name: (split.x, split.y) for name, split in data.splits.items()},
            loss=training.loss,
            probes=training.probes,
            spec=spec.table(),
            meta={"data": data.table(), "precision": spec.precision},
            chunk=training.chunk,
        )
        training.advance(recorder, 0, report, stop)
    return path


def resume(path: str | Path, *, report: Report | None = None, stop: Callable[[], bool] | None = None) -> Path:
    """Go on with a run that was interrupted or killed; a finished one is left as it is.

    The finished record equals that of an uninterrupted run, array for array.

    Args:
        path: folder of the record.
        report: see `train`.
        stop: see `train`.

    Raises:
        SettingError: the record was not made by `train`, or its data have changed.
        RecordError: it cannot be opened, or another process is writing it.
    """
    run = Run.open(path)
    if run.status == "finished":
        return run.path
    spec = spec_of(run)
    with arithmetic(spec):
        training = Training(spec)
        recorded = run.meta["data"]["fingerprint"]
        if training.data.fingerprint != recorded:
            raise SettingError(
                f"{path}: recorded on data with fingerprint {recorded[:12]}, but the data are now "
                f"{training.data.fingerprint[:12]}; expected the same data"
            )
        writer = Writer.open(path)
        recorder = Recorder.reopen(
            writer, training.model, training.data.splits, training.loss, training.probes, training.chunk
        )
        saved = writer.last_checkpoint()
        writer.truncate(-1 if saved is None else saved[0])
        writer.update(status="running", error=None)
        first = 0 if saved is None else training.restore(saved[1], recorder)
        training.advance(recorder, first, report, stop, observed=saved is not None)
    return run.path


def spec_of(run: Run) -> RunSpec:
    """The spec a record was made from.

    Raises:
        SettingError: a record of somebody's own loop has none.
    """
    table = run.spec
    if "dataset" not in table or "steps" not in table:
        raise SettingError(f"{run.path}: recorded by a loop of its own, which this command cannot run")
    return RunSpec.from_dict(table)


class Training:
    """Data, network, optimizer and batches of a spec, and the steps over them."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        device = pick_device(spec.device)
        dtype = getattr(torch, spec.dtype)
        data = load(spec.dataset).to(device, dtype)
        size = spec.optimizer.batch_size
        available = len(data.splits["train"].y)
        if size is not None and size > available:
            raise SettingError(
                f"optimizer.batch_size = {size}: expected at most the {available} training samples of this run"
            )
        torch.manual_seed(spec.seed)
        model = spec.model.build(data.input_shape, data.classes).to(device, dtype)
        self.model, self.data = arranged(model, data)
        x, y = self.data.splits["train"].x, self.data.splits["train"].y
        self.chunk = spec.model.samples_per_pass
        self.loss = spec.loss.for_data(self.data)
        self.probes = {name: probe.for_data(self.data) for name, probe in spec.probes.items()}
        self.objective = Objective(self.model, self.loss, x, y, self.chunk)
        self.optimizer: Any = spec.optimizer.build(self.model.parameters(), self.objective)
        augment = None if spec.augment is None else spec.augment.for_data(self.data)
        self.batches = None if size is None else Batches(len(y), size, spec.seed, device, augment)
        self._shares = self.batches is None and not mode_matters(self.model)

    def advance(
        self,
        recorder: Recorder,
        first: int,
        report: Report | None,
        stop: Callable[[], bool] | None,
        observed: bool = False,
    ) -> None:
        """Observe and step from ``first`` to the end; ``observed`` says that ``first`` is in the record already."""
        recorder.state = self.state
        status = "interrupted"
        try:
            for step in range(first, self.spec.steps + 1):
                observation = None
                last = step == self.spec.steps
                if not (observed and step == first):
                    observation = recorder.observe(step, last=last, keeps_graph=self._shares and not last)
                stopping = not last and stop is not None and stop()
                recorder.checkpoint(step, force=stopping)
                if report is not None:
                    report(step, recorder)
                if stopping:
                    break
                if not last:
                    self.step(observation)
            else:
                status = "finished"
        except Diverged as error:
            reason = f"{error}; optimizer.lr = {self.spec.optimizer.lr:g} is too large here"
            recorder.close("diverged", error=reason)
            raise Diverged(reason) from None
        except KeyboardInterrupt:
            recorder.close(status)
            raise
        except BaseException as error:
            recorder.close("failed", error=f"{type(error).__name__}: {error}")
            raise
        recorder.close(status)

    def step(self, observation: Observation | None) -> None:
        """One optimizer step, which reuses the gradient of an observation where that is the whole batch's."""
        if self.batches is not None:
            self.optimizer.step(self._batch_closure(*self.batches.take(self.objective.x, self.objective.y)))
            return
        shared = observation if self._shares else None
        self.optimizer.step(self._full_closure(shared))

    def _batch_closure(self, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            value = self.loss(self.model, x, y)
            value.backward()
            return value.detach()

        return closure

    def _full_closure(self, shared: Observation | None) -> Callable[[], Tensor]:
        unused = [shared] if shared is not None else []

        def closure() -> Tensor:
            # Only the first call of a step is made at the parameters that were observed.
            value, gradient = (
                unused.pop().loss_and_gradient
                if unused
                else full_gradient(self.model, self.loss, self.data.splits["train"], self.chunk)
            )
            trained = (p for p in self.model.parameters() if p.requires_grad)
            for parameter, part in zip(trained, gradient, strict=True):
                parameter.grad = part
            return value

        return closure

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights and the probes' memory."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "batches": None if self.batches is None else self.batches.state_dict(),
            "generator": torch.get_rng_state(),
        }

    def restore(self, payload: bytes, recorder: Recorder) -> int:
        """Set everything back to a checkpoint, and return its step."""
        saved = torch.load(io.BytesIO(payload), map_location=pick_device(self.spec.device), weights_only=False)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.batches is not None:
            self.batches.load_state_dict(saved["batches"])
        recorder.memory.update(saved["memory"])
        torch.set_rng_state(saved["generator"].cpu())
        return int(saved["step"])


@lru_cache(maxsize=1)
def load(dataset: Dataset) -> Data:
    """The data of a spec; the runs of a sweep that share a process share them."""
    return dataset.load()

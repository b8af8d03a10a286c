"""Steps per second of the paper's ResNet-20 runs on this machine, and what its Table 2 would take.

    MARGINTAIL_DATA=... python -m tests.bench.gpu_resnet --device cuda --seconds 480 --tf32
    python -m tests.bench.gpu_resnet --smoke --seconds 10

Trains CE, Flat, Rob and CalMO with one optimizer, one after the other, on the preset ``resnet_losses_paper`` and the
full cifar10-jpeg, recorded as in the preset, each until its share of the time is up; then CE with each other optimizer.
The records stay in ``--out``, and ``margintail resume`` goes on with them. ``--smoke`` takes the small preset on
digits, which any CPU does in seconds. Reading the images is not counted.

The projection is for 4 optimizers x 6 losses x 3 seeds, one run at a time. It takes label smoothing and focal loss
for as dear as CE, and an optimizer for as many times dearer with each loss as it is with CE.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from analysis.methods import method
from analysis.record import Run
from runners.arithmetic import pick_device
from runners.loop import load, train
from runners.recorder import Recorder, device_name
from runners.reproduce import Planned
from runners.spec import EXPERIMENTS, RunSpec, read_experiment

SEEDS = 3
ALIKE = {"CE": 3, "Flat": 1, "Rob": 1, "CalMO": 1}
"""The methods that are run, and how many of the table's losses cost as much as each."""
FIRST = 3
"""Steps before the clock starts: kernels are chosen and memory is taken in the first ones."""


class Speed(NamedTuple):
    """How fast a run was.

    Attributes:
        path: its record.
        steps: steps that were timed.
        seconds: what they took, recording included.
    """

    path: Path
    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds


def chosen_specs(arguments: argparse.Namespace) -> dict[tuple[str, str], RunSpec]:
    """The runs to make, by optimizer and method."""
    overrides = {"device": arguments.device, "seed": 0, "probes.checkpoints": {"every": 10**6}}
    if arguments.tf32:
        overrides["precision"] = "tf32"
    if not arguments.smoke:
        overrides["dataset"] = {"name": "parquet", "root": "$MARGINTAIL_DATA/cifar10-jpeg", "validation_size": 5000}
    preset = EXPERIMENTS / f"resnet_losses_{'smoke' if arguments.smoke else 'paper'}.toml"
    specs = {}
    for spec in read_experiment(preset, overrides):
        name = method(Planned(spec))
        if name == "CE" or (name in ALIKE and spec.optimizer.name == arguments.optimizer):
            specs[spec.optimizer.name, name] = spec
    return specs


def timed(spec: RunSpec, out: Path, seconds: float) -> Speed:
    """Train for about so long, or to the end, and time all steps but the first few."""
    device = pick_device(spec.device)
    marks: list[tuple[int, float]] = []
    begun = time.perf_counter()

    def report(step: int, recorder: Recorder) -> None:
        # The host runs ahead of a GPU; it waits for it only where the clock starts.
        if step == FIRST:
            _wait(device)
            marks.append((step, time.perf_counter()))
        done[0] = step

    done = [0]
    path = train(
        spec,
        out,
        report=report,
        stop=lambda: done[0] > FIRST and time.perf_counter() - begun > seconds,
    )
    _wait(device)
    first, started = marks[0]
    return Speed(path, done[0] - first, time.perf_counter() - started)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(words: Sequence[str] | None = None) -> dict[tuple[str, str], Speed]:
    """Run, print and return the speed of each optimizer and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "muon", "sam", "adamw"))
    parser.add_argument("--seconds", type=float, default=480, help="of training, all runs together")
    parser.add_argument("--tf32", action="store_true", help="round the factors of convolutions to TF32 (CUDA)")
    parser.add_argument("--smoke", action="store_true", help="digits and a narrow network")
    parser.add_argument("--out", type=Path, help="folder of the records; by default a new temporary one")
    arguments = parser.parse_args(words)
    out = arguments.out or Path(tempfile.mkdtemp(prefix="gpu_resnet_"))
    specs = chosen_specs(arguments)
    ours = [key for key in specs if key[0] == arguments.optimizer]
    # Four fifths of the time for the four methods, the rest for the other optimizers.
    share = {key: 0.8 / len(ours) if key in ours else 0.2 / (len(specs) - len(ours)) for key in specs}

    started = time.perf_counter()
    data = load(specs[ours[0]].dataset)
    print(f"{data.label}: {data.table()['n_train']} training images, read in {time.perf_counter() - started:.0f} s")
    print(
        f"device {device_name(pick_device(arguments.device))}, precision {specs[ours[0]].precision}, records in {out}"
    )
    speeds: dict[tuple[str, str], Speed] = {}
    for key in sorted(specs, key=lambda key: key not in ours):
        speeds[key] = speed = timed(specs[key], out, share[key] * arguments.seconds)
        run = Run.open(speed.path)
        accuracy, ece = (run.metric(name, split="test").dropna() for name in ("accuracy", "ece"))
        print(
            f"{key[0]:6s} {key[1]:6s} {speed.rate:8.2f} steps/s over {speed.steps} steps; at step {ece.index[-1]} "
            f"test accuracy {accuracy.iloc[-1]:.3f}, ECE {ece.iloc[-1]:.4f}",
            flush=True,
        )
    report_projection(speeds, arguments.optimizer, specs[ours[0]].steps)
    return speeds


def projection(speeds: dict[tuple[str, str], Speed], optimizer: str, steps: int) -> dict[str, float]:
    """Hours of the table's runs of each optimizer."""
    per_seed = steps * sum(count / speeds[optimizer, method].rate for method, count in ALIKE.items())
    own = speeds[optimizer, "CE"].rate
    return {
        name: SEEDS * per_seed * own / speed.rate / 3600 for (name, method), speed in speeds.items() if method == "CE"
    }


def report_projection(speeds: dict[tuple[str, str], Speed], optimizer: str, steps: int) -> None:
    """Print it."""
    hours = projection(speeds, optimizer, steps)
    parts = ", ".join(f"{name} {value:.2g}" for name, value in hours.items())
    print(
        f"Table 2 at {steps} steps, {SEEDS} seeds, {sum(ALIKE.values())} losses: {sum(hours.values()):.3g} hours "
        f"on this device, one run at a time ({parts})."
    )


if __name__ == "__main__":
    main()

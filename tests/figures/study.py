"""A small study written through the real Writer: logits that grow, sharpness at every other step."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis import calibration, margins
from analysis.record import Runs, Writer

SAMPLES, CLASSES, STEPS = 40, 4, 64
RATES = {"gd": (0.1, 0.5), "adamw": (0.001, 0.002), "bulk_sgd": (0.1,)}
SEEDS = (0, 1, 2)
AUDIT = 1.0005
"""What a search anew finds, over what was tracked."""
LABEL = "digits <small> & noisy"
"""With the letters that HTML would trip over."""


def logits(rate: float, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits [steps, n, K] and labels [n]."""
    random = np.random.default_rng([seed, int(rate * 1e4), len(split)])
    labels = random.integers(0, CLASSES, SAMPLES)
    noise = random.normal(size=(SAMPLES, CLASSES))
    signal = np.eye(CLASSES)[labels] * (1.0 if split == "train" else 0.5)
    growth = np.linspace(0, 4, STEPS)[:, None, None] * (1 + rate)
    return noise * (0.2 + growth / 6) + signal * growth, labels


def sharpness(rate: float, seed: int, step: int) -> float:
    return 1 + seed / 10 + step * rate if step % 2 == 0 else float("nan")


def examples(z: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    correct = calibration.top_label(z, y, from_logits=True)[1]
    return {
        "margin": margins.true_margin(z, y).astype(np.float32),
        "predicted_margin": margins.predicted_margin(z).astype(np.float32),
        "correct": np.asarray(correct, bool),
        "log_one_minus_confidence": margins.log_one_minus_confidence(z).astype(np.float32),
        "log_one_minus_p_true": margins.log_one_minus_p_true(z, y).astype(np.float32),
    }


def write_run(folder: Path, optimizer: str, rate: float, seed: int, **settings: Any) -> None:
    """One run.

    ``settings`` replace parts of the spec; ``own`` are more settings of the optimizer, ``batch_sharpness=True``
    records that too, ``jacobian=True`` Jacobian norms from 20 to 40, and ``best`` a validation loss that is least at
    this step.
    """
    batch = settings.pop("batch_sharpness", False)
    best = settings.pop("best", None)
    jacobian = settings.pop("jacobian", False)
    own = settings.pop("own", {})
    words = [f"-{key}{value}" for key, value in own.items()] + [f"-{value['name']}" for value in settings.values()]
    name = f"{optimizer}-lr{rate:g}-s{seed}" + "".join(words)
    spec = {
        "dataset": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [8], "activation": "tanh"},
        "loss": {"name": "ce"},
        "optimizer": {"name": optimizer, "lr": rate, **own},
        "seed": seed,
        "steps": STEPS - 1,
        **settings,
    }
    meta = {
        "data": {"classes": CLASSES, "n_train": SAMPLES, "n_test": SAMPLES, "label": LABEL, "fingerprint": "f"},
        "versions": {"numpy": np.__version__},
        "commit": {"id": "0123abc", "dirty": False},
        "device": "cpu",
    }
    with Writer.create(folder / name, {"id": name, "spec": spec, "meta": meta}) as writer:
        data = {split: logits(rate, seed, split) for split in ("train", "test")}
        for split, (_, y) in data.items():
            writer.static(f"labels_{split}", labels=y)
        for step in range(STEPS):
            row = {"lambda_max": sharpness(rate, seed, step)}
            if step in (10, 11):
                row["lambda_max_audit"] = AUDIT * sharpness(rate, seed, 10)
            if best is not None:
                row["loss_validation"] = 1.0 + abs(step - best)
            if batch:
                row["batch_sharpness"] = 2 * sharpness(rate, seed, step)
            for split, (z, y) in data.items():
                columns = examples(z[step], y)
                writer.append(f"examples_{split}", step, **columns)
                row[f"loss_{split}"] = float(margins.log_p_true(z[step], y).mean() * -1)
                row[f"accuracy_{split}"] = float(columns["correct"].mean())
            if jacobian:
                z = data["train"][0][step]
                p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
                hessian = np.eye(CLASSES) * p[:, None] - p[:, None] * p[:, :, None]
                top = np.linalg.eigvalsh(hessian)[:, -1]
                writer.append("jacobian", step, norm=np.linspace(20, 40, SAMPLES), output_hessian=top)
            writer.append("scalars", step, **row)
        writer.update(status="finished")


def write_study(folder: Path) -> Runs:
    """Runs of `RATES` x `SEEDS`."""
    for optimizer, rates in RATES.items():
        for rate in rates:
            for seed in SEEDS:
                write_run(folder, optimizer, rate, seed)
    return Runs.open(folder)

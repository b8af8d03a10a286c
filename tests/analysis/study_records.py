"""Records whose series are those of a synthetic study."""

from pathlib import Path

import numpy as np

from analysis.record import Runs, Writer
from tests.generators import Study


def write(
    folder: Path,
    study: Study,
    optimizer: str = "gd",
    accuracy: float = 1.0,
    loss: dict | None = None,
    status: str = "finished",
) -> Runs:
    """One record per run: scalars ece, kce, lambda_max, exp_moment, loss_train, gradient_norm; examples.

    The training accuracy is ``accuracy`` up to step 40, and 1 from there on.
    """
    loss = loss or {"name": "ce"}
    for i in range(len(study.lr)):
        spec = {
            "optimizer": {"name": optimizer, "lr": float(study.lr[i])},
            "loss": loss,
            "dataset": {"name": "digits"},
            "model": {"name": "mlp"},
            "seed": int(study.seed[i]),
            "steps": len(study.step),
        }
        header = {
            "id": f"{optimizer}-{loss['name']}-{study.lr[i]}-{study.seed[i]}",
            "spec": spec,
            "meta": {"data": {"classes": 10}},
        }
        with Writer.create(folder / header["id"], header) as writer:
            for t, step in enumerate(study.step):
                writer.append(
                    "scalars",
                    int(step),
                    ece=study.ece[i, t],
                    kce=1.1 * study.ece[i, t],
                    lambda_max=study.lam[i, t],
                    exp_moment=study.Q[i, t],
                    loss_train=study.loss[i, t],
                    gradient_norm=study.gnorm[i, t],
                )
                correct = np.arange(4) < round(4 * (accuracy if t < 40 else 1.0))
                writer.append("examples_train", int(step), correct=correct)
            writer.update(status=status)
    return Runs.open(folder)

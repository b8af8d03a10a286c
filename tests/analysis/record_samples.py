"""Rows whose content follows from their step, so that a test can tell whether a record holds what was written."""

from pathlib import Path

import numpy as np

from analysis.record import Run, Writer

SAMPLES = 6


def header(run_id: str = "a", **spec: object) -> dict:
    table = {
        "optimizer": {"name": "gd", "lr": 0.1},
        "loss": {"name": "ce"},
        "dataset": {"name": "digits"},
        "model": {"name": "mlp"},
        "seed": 0,
        "steps": 100,
        **spec,
    }
    return {"id": run_id, "spec": table, "meta": {"data": {"classes": 3}}}


def scalars(step: int) -> dict:
    """A loss at every step, lambda_max at every third, extra only from step 5 on."""
    row = {"loss_train": 1 / (step + 1)}
    if step % 3 == 0:
        row["lambda_max"] = float(step)
    if step >= 5:
        row["extra"] = step
    return row


def examples(step: int) -> dict:
    random = np.random.default_rng(step)
    margin = random.normal(size=SAMPLES)
    return {
        "margin": margin.astype(np.float32),
        "correct": margin > 0,
        "index": np.arange(SAMPLES) + step,
        "precise": margin,
    }


def append(writer: Writer, steps: range) -> None:
    for step in steps:
        writer.append("scalars", step, **scalars(step))
        writer.append("examples_train", step, **examples(step))


def assert_holds(run: Run, stream: str, steps: list[int]) -> None:
    """The stream holds exactly the rows of these steps."""
    if not steps:
        assert stream not in run.streams
        return
    np.testing.assert_array_equal(run.steps(stream), steps)
    expected = [scalars(step) if stream == "scalars" else examples(step) for step in steps]
    names = list(dict.fromkeys(name for row in expected for name in row))
    assert run.columns(stream) == names
    for name in names:
        wanted = np.stack([np.asarray(row.get(name, np.nan)) for row in expected])
        found = run.column(stream, name)
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == (np.float64 if stream == "scalars" else wanted.dtype)


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}

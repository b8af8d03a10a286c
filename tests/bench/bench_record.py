"""What a large record costs: 10,000 steps of 5,000 training and 5,000 test samples.

    python -m tests.bench.bench_record

Writes the record (1.7 GB by default) to a temporary folder and removes it. Printed: milliseconds a step to record,
beside writing the same bytes to one plain file; the memory of a fresh process that opens it, reads the scalars, and
computes metrics of all steps; and the time of ECE over 1,000 steps in one thread.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from analysis.record import Run, Writer

READER = """
import json, resource, sys, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
marks = {"numpy, pandas, analysis imported": 0.0}
from analysis import Run
marks["numpy, pandas, analysis imported"] = peak()
start = time.perf_counter()
run = Run.open(sys.argv[1])
run._repr_html_(), run.streams, run.meta
marks["opened and shown"] = peak()
opening = time.perf_counter() - start
run.frame()
marks["scalars in a frame"] = peak()
run.steps("examples_train")
marks["steps of a stream, each segment checked"] = peak()
run.rows("examples_train", "margin", [0, len(run.steps("examples_train")) // 2])
marks["two rows"] = peak()
run.metric("ece")
run.metric("exp_moment", split="test")
marks["ECE and Q at all steps"] = peak()
run.column("examples_train", "margin")
marks["one whole column"] = peak()
print(json.dumps({"marks": marks, "opening": opening}))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=5000, help="of each of the two splits")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; default: the system's")
    return parser.parse_args()


def rows(samples: int, variants: int = 16) -> list[dict[str, np.ndarray]]:
    """Some rows to write again and again; what they hold costs the writer nothing."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(variants):
        margin = random.normal(2, 2, samples).astype(np.float32)
        predicted = np.abs(margin)
        made.append(
            {
                "margin": margin,
                "predicted_margin": predicted,
                "correct": margin > 0,
                "log_one_minus_confidence": -np.logaddexp(0, predicted),
                "log_one_minus_p_true": -np.logaddexp(0, margin),
            }
        )
    return made


def write(path: Path, steps: int, examples: list[dict[str, np.ndarray]]) -> float:
    """Seconds to record all steps, synced to the disk."""
    header = {"id": path.name, "spec": {"optimizer": {"name": "gd", "lr": 0.1}, "steps": steps}, "meta": {}}
    scalars = {f"scalar_{i}": float(i) for i in range(12)}
    with Writer.create(path, header) as writer:
        start = time.perf_counter()
        for step in range(steps):
            writer.append("scalars", step, **scalars)
            writer.append("examples_train", step, **examples[step % len(examples)])
            writer.append("examples_test", step, **examples[-1 - step % len(examples)])
        writer.flush()
        return time.perf_counter() - start


def write_plain(path: Path, steps: int, examples: list[dict[str, np.ndarray]]) -> float:
    """Seconds to write the same bytes to one file and sync it: what the disk takes."""
    start = time.perf_counter()
    with open(path, "wb") as file:
        for step in range(steps):
            for row in (examples[step % len(examples)], examples[-1 - step % len(examples)]):
                for column in row.values():
                    file.write(column)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def main() -> None:
    options = arguments()
    examples = rows(options.samples)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        plain = write_plain(Path(folder) / "plain", options.steps, examples)
        (Path(folder) / "plain").unlink()
        path = Path(folder) / "run"
        recorded = write(path, options.steps, examples)
        files = [file for file in path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        print(f"{options.steps} steps of 2 x {options.samples} samples: {size / 2**30:.2f} GiB, {len(files)} files")
        print(
            f"recorded in {1e3 * recorded / options.steps:.3f} ms a step, the same bytes to one plain file in "
            f"{1e3 * plain / options.steps:.3f} ms: {recorded / plain:.2f} times"
        )
        answer = subprocess.run(
            [sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True
        ).stdout
        reading = json.loads(answer)
        print(f"opened in {1e3 * reading['opening']:.0f} ms; peak memory of the process so far:")
        for mark, megabytes in reading["marks"].items():
            print(f"  {megabytes:7.0f} MiB  {mark}")
        measure_ece(path)


def measure_ece(path: Path) -> None:
    """Time of ECE over the first 1,000 steps, from the disk and from memory."""
    from analysis.calibration import ece

    run = Run.open(path)
    count = min(1000, len(run.steps("examples_train")))
    start = time.perf_counter()
    logs = run.rows("examples_train", "log_one_minus_confidence", slice(0, count))
    correct = run.rows("examples_train", "correct", slice(0, count))
    confidence = -np.expm1(logs.astype(np.float64))
    reading = time.perf_counter() - start
    start = time.perf_counter()
    ece(confidence, correct)
    computing = time.perf_counter() - start
    print(
        f"ECE of {count} steps x {confidence.shape[1]} samples: {computing:.2f} s, after {reading:.2f} s to read them"
    )


if __name__ == "__main__":
    main()

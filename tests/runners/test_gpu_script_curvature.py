"""The GPU script's every section, at tiny sizes on the CPU."""

import re

import pytest
import torch

from tests.bench import gpu_curvature


def test_the_smoke_run_goes_through_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    gpu_curvature.main(["--smoke"])
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == flags
    said = capsys.readouterr().out
    for case in gpu_curvature.SMOKE:
        assert case.label in said
    # Two tables for each network, with the cold, the warm and the trailing tracker.
    rows = [line.split() for line in said.splitlines() if line.startswith("margintail tracker")]
    assert len(rows) == 3 * len(gpu_curvature.SMOKE)
    colds = [float(row[6]) for row in rows if row[2] == "cold"]
    assert len(colds) == len(gpu_curvature.SMOKE)
    assert max(colds) < 1e-4
    for name in ("EoSS LOBPCG", "centralflows LOBPCG, our product", "curvlinops + eigsh, ncv 6"):
        assert said.count(f"\n{name} ") >= len(gpu_curvature.SMOKE)
    assert "failed" not in said
    errors = [float(e) for e in re.findall(r"TF32 .*error of G v ([0-9.e+-]+),", said)]
    assert len(errors) == 2 * len(gpu_curvature.SMOKE)
    # On a CPU the flags do nothing, and float32 is what remains.
    assert max(errors) < 1e-5
    (apart,) = re.findall(r"they differ by ([0-9.e+-]+)\)", said)
    assert float(apart) < 1e-5


def test_random_images_have_decaying_singular_values() -> None:
    x, y, source = gpu_curvature.data(200, 8, torch.device("cpu"))
    assert source == "random images"
    assert x.shape == (200, 3, 8, 8)
    assert y.shape == (200,)
    values = torch.linalg.svdvals(x.flatten(1))
    assert values[0] / values[20] > 5

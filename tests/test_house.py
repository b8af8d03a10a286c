"""The house: who may import whom, what the README promises, and that every plug-in says what it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runners.cli import REGISTRIES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_import_contracts_hold():
    lint = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_analysis_and_figures_do_not_load_torch():
    code = "import analysis, figures, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_plugin_loads_and_says_what_it_is(kind):
    names = REGISTRIES[kind].names()
    assert names
    for name in names:
        assert REGISTRIES[kind].get(name).__doc__


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_sets_up_in_two_commands():
    first = blocks("bash")[0].strip().splitlines()
    assert len(first) == 2
    assert first[0].endswith("margintail demo")
    assert first[1].endswith("pytest")


def test_the_readme_code_runs_as_written(tmp_path):
    code = blocks("python")
    assert code
    for index, block in enumerate(code):
        result = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert result.returncode == 0, f"block {index}:\n{result.stderr}"


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target

"""What words on the command line stand for."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.plugins import SettingError
from analysis.record import Runs
from runners.spec import EXPERIMENTS


def experiment_path(name: str) -> Path:
    """The file of a preset, or the TOML file of that path.

    Raises:
        SettingError: neither is there.
    """
    preset = EXPERIMENTS / f"{name}.toml"
    if preset.is_file():
        return preset
    if not Path(name).is_file():
        known = ", ".join(sorted(path.stem for path in EXPERIMENTS.glob("*.toml")))
        raise SettingError(f"experiment = {name!r}: no such file or preset; accepted: a TOML file, or one of {known}")
    return Path(name)


def overrides(words: Iterable[str] | None) -> dict[str, Any]:
    """Dotted settings of words such as ``optimizer.lr=0.1``; what is no TOML value is taken as a string.

    Raises:
        SettingError: a word without a key or an equals sign.
    """
    return dict(map(_setting, words or ()))


def _setting(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise SettingError(f"--set {word!r}: expected KEY=VALUE, such as optimizer.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def design(words: str) -> tuple[int, int, int]:
    """Learning rates, seeds and steps of a word such as ``4x3x300``.

    Raises:
        SettingError: anything else.
    """
    counts = words.lower().split("x")
    if len(counts) != 3 or not all(count.isdigit() for count in counts):
        raise SettingError(f"--plan {words!r}: expected LEARNING_RATESxSEEDSxSTEPS, such as 4x3x300")
    rates, seeds, steps = map(int, counts)
    return rates, seeds, steps


def frame_of(path: Path | None) -> pd.DataFrame:
    """The table of a CSV file.

    Raises:
        SettingError: it cannot be read.
    """
    try:
        return pd.read_csv(path)  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise SettingError(f"--frame {str(path)!r}: cannot be read as CSV ({error})") from None


def open_runs(path: Path) -> Runs:
    """The run at a path, or all runs below it.

    Raises:
        SettingError: there is none.
    """
    if not path.is_dir():
        raise SettingError(f"path = {str(path)!r}: no such folder; expected a run, or a folder of runs")
    runs = Runs.open(path)
    if not len(runs):
        raise SettingError(f"path = {str(path)!r}: holds no run; expected a run, or a folder of runs")
    return runs

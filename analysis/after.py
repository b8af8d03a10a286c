"""What an experiment asks for after its runs: ensembles of their seeds, and post-hoc calibrators."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from analysis.plugins import SettingError, validate
from analysis.recalibration import RECALIBRATIONS
from analysis.run import Run

FILE = "after.json"
"""Beside the runs' folders, so that tables know what was asked for."""


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class After(BaseModel):
    """The table ``[after]`` of an experiment. It is no part of a run, and changes no record.

    Attributes:
        ensemble: the mean of softmax probabilities over the seeds of one setting.
        calibrators: names or tables of `analysis.recalibration`, fitted on validation and reported on test.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ensemble: bool = False
    calibrators: Annotated[tuple[str | dict[str, Any], ...], BeforeValidator(_tuple)] = ()

    @classmethod
    def from_dict(cls, table: Any, setting: str = "after") -> "After":
        """Validate a table; ``setting`` is what errors call it.

        Raises:
            SettingError: names the first wrong setting, its value and what is accepted.
        """
        if not isinstance(table, Mapping):
            raise SettingError(f'{setting} = {table!r}: expected a table such as {{ calibrators = ["temperature"] }}')
        found = validate(cls, table, setting)
        for one in found.calibrators:
            RECALIBRATIONS.build({"name": one} if isinstance(one, str) else one, f"{setting}.calibrators")
        return found

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return self.ensemble or bool(self.calibrators)

    def save(self, folder: str | Path) -> None:
        """Write ``after.json`` beside the runs of a folder, if there is one; nothing asked for removes it."""
        path = Path(folder) / FILE
        if self and path.parent.is_dir():
            path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        elif not self:
            path.unlink(missing_ok=True)

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "After":
        """What the experiments of these runs asked for, taken together; nothing where no file says so.

        Raises:
            SettingError: a file that holds something else.
        """
        found = [cls._open(folder / FILE) for folder in dict.fromkeys(run.path.parent for run in runs)]
        calibrators = {json.dumps(one, sort_keys=True): one for after in found for one in after.calibrators}
        return cls(ensemble=any(after.ensemble for after in found), calibrators=tuple(calibrators.values()))

    @classmethod
    def _open(cls, path: Path) -> "After":
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise SettingError(f"{path}: cannot be read ({error}); margintail run writes it anew") from None

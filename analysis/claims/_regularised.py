"""Runs with CalMO beside their twins with plain cross-entropy."""

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.methods import method, settings_without
from analysis.run import Run
from analysis.selection import ENDED_BADLY, read, window


@dataclass(frozen=True)
class Twins:
    """Pairs of runs that differ in the training loss only.

    Attributes:
        optimizer: name of their optimizer.
        pairs: (CalMO, cross-entropy), one for each learning rate and seed that both have.
    """

    optimizer: str
    pairs: tuple[tuple[Run, Run], ...]

    def gains(self, name: str) -> tuple[list[float], str]:
        """A test metric under cross-entropy less that under CalMO, of each pair; and the window it was read in.

        Raises:
            SettingError: a run does not have it.
        """
        read_pairs = [(read(calmo, name), read(plain, name)) for calmo, plain in self.pairs]
        gains = [plain[0] - calmo[0] for calmo, plain in read_pairs]
        return gains, window(selection for pair in read_pairs for _, selection in pair)


def twins(runs: Iterable[Run]) -> list[Twins]:
    """All pairs, by optimizer. CalMO is the loss with both of its terms; with one alone it is Flat or Rob."""
    plain: dict[str, Run] = {}
    calmo: dict[str, Run] = {}
    for run in runs:
        if run.status in ENDED_BADLY:
            continue
        if method(run) == "CE":
            plain[settings_without(run, "loss")] = run
        elif method(run) == "CalMO":
            calmo[settings_without(run, "loss")] = run
    pairs: dict[str, list[tuple[Run, Run]]] = {}
    for key, run in calmo.items():
        if key in plain:
            pairs.setdefault(str(run.setting("optimizer.name")), []).append((run, plain[key]))
    return [Twins(optimizer, tuple(found)) for optimizer, found in pairs.items()]

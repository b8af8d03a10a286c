"""What people look at. Never imports torch or runners."""

from collections.abc import Sequence
from pathlib import Path

from analysis.plugins import SettingError
from analysis.run import Run
from figures.kinds import KINDS
from figures.outputs import headed, save
from figures.paper import items
from figures.records import slug
from figures.report import report
from figures.style import style

__all__ = ["draw", "report"]


def draw(name: str, runs: Sequence[Run], out: str | Path, scale: str = "") -> Path:
    """Draw a figure from records, as PDF and PNG with a JSON that names the runs behind it.

    Args:
        name: a file of figures/kinds, or a figure or table of the paper such as ``"fig1"`` or ``"tableA2"``.
        runs: the records; of the paper's items those that it does not show are left out.
        out: folder, made if it is not there.
        scale: what the title of an item of the paper says of its scale, such as ``"smoke scale"``.

    Returns:
        The PDF, or the folder where the kind makes several. A table has a CSV beside it.

    Raises:
        SettingError: an unknown name, or runs that lack what it shows.
    """
    known = [*KINDS.names(), *items()]
    if name not in known and ":" not in name:
        raise SettingError(f"figure = {name!r}: there is no such figure; accepted: {', '.join(known)}")
    if not len(runs):
        raise SettingError("runs: there are none to draw")
    item = items().get(name)
    kind = item.build() if item else KINDS.build({"name": name}, "figure")
    folder = Path(out)
    with style():
        drawings = kind.draw(item.runs(runs) if item else list(runs))
        if item:
            drawings = headed(drawings, name, item, scale)
        folder.mkdir(parents=True, exist_ok=True)
        prefix = slug(name) if ":" in name else name
        made = [save(drawing, folder / f"{prefix}-{part}.pdf", kind, item, scale) for part, drawing in drawings.items()]
    return made[0] if len(made) == 1 else folder

"""A folder is a registry: every file in it defines one plug-in, and its fields are its settings.

``Registry("runners.optimizers", Optimizer)`` lists the modules of that folder; ``build({"name": "gd", "lr": 0.1})``
imports ``runners/optimizers/gd.py``, finds the one subclass of ``Optimizer`` in it, and validates the settings. A
plug-in that lives outside the repository is named ``"module:Class"``.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

ROOMS = ("analysis", "runners", "figures")
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Counts = Annotated[tuple[Count, ...], BeforeValidator(_list_to_tuple)]
Naturals = Annotated[tuple[Natural, ...], BeforeValidator(_list_to_tuple)]


class SettingError(ValueError):
    """A user's mistake in a setting: one sentence that names the setting, its value and what is accepted."""


class Plugin(BaseModel):
    """Base of all plug-ins: a frozen, strictly validated table of settings.

    ``name`` is what a spec calls the plug-in: its file's name, or ``module:Class`` for one outside the repository.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    name: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        room, _, file = cls.__module__.partition(".")
        cls.name = file.rpartition(".")[2] if room in ROOMS else f"{cls.__module__}:{cls.__qualname__}"

    def table(self) -> dict[str, Any]:
        """The resolved settings as plain JSON values, ``name`` first."""
        return {"name": self.name, **self.model_dump(mode="json")}


P = TypeVar("P", bound=Plugin)
M = TypeVar("M", bound=BaseModel)


class Registry(Generic[P]):
    """The plug-ins of one folder.

    Args:
        package: dotted name of the folder, for example ``"runners.optimizers"``.
        base: the class that each plug-in of the folder derives from.
    """

    def __init__(self, package: str, base: type[P]) -> None:
        self.package = package
        self.base = base
        self.kind = package.rpartition(".")[2]

    def names(self) -> list[str]:
        """Names of the files in the folder, sorted."""
        folder = importlib.import_module(self.package)
        return sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_"))

    def get(self, name: str, setting: str = "name") -> type[P]:
        """The plug-in class called ``name``; ``setting`` is what an error calls the name.

        Raises:
            SettingError: no such plug-in, or a module that holds none.
        """
        module_name, _, class_name = name.partition(":")
        if not class_name:
            if name not in self.names():
                raise SettingError(
                    f"{setting} = {name!r}: no such entry in {self.kind}; "
                    f"accepted: {', '.join(self.names())}, or 'module:Class' for your own"
                )
            module_name = f"{self.package}.{name}"
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise
            raise SettingError(f"{setting} = {name!r}: there is no module {error.name!r} to import") from None
        plugin = getattr(module, class_name, None) if class_name else self._only_plugin(module)
        if not (isinstance(plugin, type) and issubclass(plugin, self.base)):
            raise SettingError(
                f"{setting} = {name!r}: {module_name} has no subclass of "
                f"{self.base.__module__}.{self.base.__name__} by that name"
            )
        return plugin

    def _only_plugin(self, module: Any) -> type[P] | None:
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, self.base) and value.__module__ == module.__name__
        ]
        return found[0] if len(found) == 1 else None

    def build(self, table: Any, setting: str) -> P:
        """Validate ``table`` (``name`` and settings) into a plug-in.

        Args:
            table: for example ``{"name": "gd", "lr": 0.0667}``.
            setting: what errors call the table, for example ``"optimizer"``.

        Raises:
            SettingError: see the class.
        """
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise SettingError(
                f"{setting} = {table!r}: expected a table with a name, such as {{ name = {self.names()[0]!r} }}"
            )
        settings = {key: value for key, value in table.items() if key != "name"}
        return validate(self.get(table["name"], f"{setting}.name"), settings, setting)


def validate(model: type[M], settings: Mapping[str, Any], setting: str = "") -> M:
    """``model(**settings)``, with pydantic's complaint turned into one sentence for the user.

    Raises:
        SettingError: names the first wrong setting, its value and what is accepted.
    """
    try:
        return model(**settings)
    except ValidationError as failure:
        first = failure.errors()[0]
        where = ".".join(str(part) for part in (setting, *first["loc"]) if str(part))
        if first["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields) or "no settings"
            raise SettingError(f"{where} = {first['input']!r}: unknown setting; accepted: {known}") from None
        if first["type"] == "missing":
            raise SettingError(f"{where}: this setting is required") from None
        message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise SettingError(f"{where} = {first['input']!r}: {message}") from None

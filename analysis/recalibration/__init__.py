"""Post-hoc recalibration, one method per file; the folder is the list.

A method is fitted on one split and reported on another:

    calibrator = fit({"name": "temperature"}, validation_logits, validation_labels)
    probabilities = calibrator(test_logits)
"""

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from analysis.plugins import Plugin, Registry
from analysis.predictions import Array, Floats, InputError, as_labels, as_logits

Parameters = dict[str, Floats]


class Recalibration(Plugin):
    """A method of recalibration: its settings are its fields.

    Attributes:
        preserves_argmax: whether the predicted class keeps the largest probability, so that accuracy stays. (Two
            logits closer than rounding may become equal probabilities.)
    """

    preserves_argmax: ClassVar[bool]

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> "Calibrator":
        """Fit to a calibration set.

        Args:
            logits: [n, K], of samples that the network was not trained on.
            labels: integers [n].

        Raises:
            InputError: other shapes, or input that is NaN, infinite, empty or out of range.
        """
        z = as_logits(logits)
        if z.ndim != 2:
            raise InputError(f"logits have shape {z.shape}; expected [n, K], one step at a time")
        return Calibrator(self, z.shape[-1], self._fit(z, as_labels(labels, z.shape)))

    @abstractmethod
    def _fit(self, logits: Floats, labels: Array) -> Parameters:
        """The fitted numbers, from checked logits [n, K] and labels [n]."""

    @abstractmethod
    def _apply(self, parameters: Parameters, logits: Floats) -> Floats:
        """Probabilities [n, K] from checked logits [n, K]."""


RECALIBRATIONS: Registry[Recalibration] = Registry("analysis.recalibration", Recalibration)


@dataclass(frozen=True)
class Calibrator:
    """A fitted method: logits in, probabilities out.

    Attributes:
        method: what was fitted, with its settings.
        classes: K.
        parameters: the fitted numbers.
    """

    method: Recalibration
    classes: int
    parameters: Parameters

    def __call__(self, logits: ArrayLike) -> Floats:
        """Probabilities [..., n, K] in float64, each row with the sum 1.

        Raises:
            InputError: a number of classes other than in the fit, NaN, infinite or empty logits.
        """
        z = as_logits(logits)
        if z.shape[-1] != self.classes:
            raise InputError(f"logits have {z.shape[-1]} classes; the calibrator was fitted to {self.classes}")
        return self.method._apply(self.parameters, z.reshape(-1, self.classes)).reshape(z.shape)

    def to_json(self) -> str:
        """Method, settings and fitted numbers, to the last bit."""
        parameters = {name: _as_json(value) for name, value in self.parameters.items()}
        return json.dumps({"method": self.method.table(), "classes": self.classes, "parameters": parameters})

    @classmethod
    def from_json(cls, text: str) -> "Calibrator":
        """What `to_json` wrote.

        Raises:
            InputError: text that it did not write.
            SettingError: a method or setting that does not exist.
        """
        try:
            saved = json.loads(text)
            table, classes, parameters = saved["method"], int(saved["classes"]), saved["parameters"].items()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"not a saved calibrator: {error!r}") from None
        method = RECALIBRATIONS.build(table, "method")
        return cls(method, classes, {name: np.array(value, dtype=np.float64) for name, value in parameters})


def _as_json(value: Floats) -> Any:
    # JSON has no NaN, the rate of an empty bin: null, which reads back as NaN.
    plain = np.array(value, dtype=object)
    plain[np.isnan(value)] = None
    return plain.tolist()


def fit(method: str | Mapping[str, Any] | Recalibration, logits: ArrayLike, labels: ArrayLike) -> Calibrator:
    """Fit a method by name, ``"temperature"``, or by table, ``{"name": "histogram", "bins": 10}``."""
    return named(method).fit(logits, labels)


def named(method: str | Mapping[str, Any] | Recalibration) -> Recalibration:
    """The method of that name or table.

    Raises:
        SettingError: no such method, or a wrong setting.
    """
    if isinstance(method, Recalibration):
        return method
    return RECALIBRATIONS.build({"name": method} if isinstance(method, str) else method, "method")

"""Results: what a computation found, as a frozen dataclass with a summary, a frame and a notebook view."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from html import escape

import pandas as pd


class Outcome(StrEnum):
    """What the runs say of a claim; compares equal to its own name, as in ``outcome == "SUPPORTED"``."""

    SUPPORTED = "SUPPORTED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Result(ABC):
    """Base of all results.

    A result of a test also has ``estimate``, ``interval``, ``pvalue`` and ``verdict``.
    """

    @abstractmethod
    def summary(self) -> str:
        """What was found, in a few lines of plain text."""

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The numbers, tidy: one row per test, fit or step."""

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        table = frame.to_html(escape=True, max_rows=20, index=not isinstance(frame.index, pd.RangeIndex))
        return f"<pre>{escape(self.summary())}</pre>{table}"


@dataclass(frozen=True, kw_only=True)
class Verdict(Result):
    """What the runs say of one claim of the paper.

    Attributes:
        claim: short name, for example ``"C1"``.
        statement: the claim in one sentence.
        outcome: supported, refuted or inconclusive.
        estimand: what ``effect`` estimates, for example ``"rho_seed, level"``.
        effect: the estimate; None where none could be computed.
        interval: its confidence interval (low, high), or None.
        pvalue: of the test behind the outcome, in [0, 1]; None where the claim is not decided by a test.
        pvalue_holm: adjusted by Holm over the claim's family of tests; None before the adjustment.
        runs: how many runs it rests on.
        window: which steps, for example ``"whole run"``.
        reason: why this outcome, and what would change it.
        paper: the published number beside which ``effect`` stands, or None.

    Raises:
        ValueError: an outcome that is none of the three, a p-value outside [0, 1], an interval (high, low).
    """

    claim: str
    statement: str
    outcome: Outcome
    estimand: str
    runs: int
    window: str
    reason: str
    effect: float | None = None
    interval: tuple[float, float] | None = None
    pvalue: float | None = None
    pvalue_holm: float | None = None
    paper: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", Outcome(self.outcome))
        for name in ("pvalue", "pvalue_holm"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{self.claim}: {name} = {value}, expected a number in [0, 1] or None")
        if self.interval is not None and not self.interval[0] <= self.interval[1]:
            raise ValueError(f"{self.claim}: interval = {self.interval}, expected (low, high)")

    @property
    def estimate(self) -> float | None:
        """The effect."""
        return self.effect

    @property
    def verdict(self) -> str:
        """``"SUPPORTED"``, ``"REFUTED"`` or ``"INCONCLUSIVE"``."""
        return self.outcome.value

    def summary(self) -> str:
        """The claim, its outcome, the numbers behind it and the reason."""
        numbers = [f"{self.estimand} = {_number(self.effect)}"]
        if self.interval is not None:
            numbers.append(f"interval [{_number(self.interval[0])}, {_number(self.interval[1])}]")
        if self.pvalue is not None:
            numbers.append(f"p = {_number(self.pvalue)}")
        if self.pvalue_holm is not None:
            numbers.append(f"Holm p = {_number(self.pvalue_holm)}")
        if self.paper is not None:
            numbers.append(f"paper {_number(self.paper)}")
        return (
            f"{self.claim} {self.outcome}: {self.statement}\n"
            f"  {', '.join(numbers)}; {self.runs} run{'s' * (self.runs != 1)}, {self.window}\n"
            f"  {self.reason}"
        )

    def to_frame(self) -> pd.DataFrame:
        """One row; the interval as ``low`` and ``high``, and NaN for what is None."""
        low, high = self.interval if self.interval is not None else (None, None)
        row = {
            "claim": self.claim,
            "outcome": self.outcome.value,
            "estimand": self.estimand,
            "effect": self.effect,
            "low": low,
            "high": high,
            "pvalue": self.pvalue,
            "pvalue_holm": self.pvalue_holm,
            "runs": self.runs,
            "window": self.window,
            "paper": self.paper,
            "statement": self.statement,
            "reason": self.reason,
        }
        frame = pd.DataFrame([row])
        numbers = ["effect", "low", "high", "pvalue", "pvalue_holm", "paper"]
        return frame.astype(dict.fromkeys(numbers, float))


def _number(value: float | None) -> str:
    return "not computed" if value is None else f"{value:.3g}"

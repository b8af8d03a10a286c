"""The paper's claims, one file each; the folder is the list.

Each file states, before any data, what it estimates, its test, its unit (the run unless it says otherwise), window,
effect threshold and what would refute it.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from analysis.plugins import Plugin, Registry
from analysis.results import Outcome, Verdict
from analysis.run import Run


class Claim(Plugin):
    """A claim about runs.

    Attributes:
        title: short name in verdicts, for example ``"C1"``.
        command: makes records that the claim can be judged on.
        decided_by_p: whether p <= .05 is needed for a verdict, so that Holm's adjustment over the claim's tests can
            undo it. Not so for equivalences and theorems.
    """

    title: ClassVar[str]
    command: ClassVar[str] = "margintail run demo"
    decided_by_p: ClassVar[bool] = True

    @abstractmethod
    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """One verdict for each part of the claim that the runs can speak to, or one that says what is missing.

        Raises:
            RecordError: a record is damaged.
        """

    def verdict(self, statement: str, outcome: Outcome, reason: str, **numbers: Any) -> Verdict:
        """A verdict under this claim's title; ``numbers`` are further fields of `Verdict`."""
        fields = {"estimand": "", "runs": 0, "window": "", **numbers}
        return Verdict(claim=self.title, statement=statement, outcome=outcome, reason=reason, **fields)

    def lacking(self, statement: str, what: str, **numbers: Any) -> Verdict:
        """Inconclusive, because records are missing."""
        return self.verdict(statement, Outcome.INCONCLUSIVE, f"{what}; to make such runs: {self.command}", **numbers)


CLAIMS: Registry[Claim] = Registry("analysis.claims", Claim)

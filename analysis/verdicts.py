"""verify: every claim of ``analysis.claims`` judged on runs, or the coupling questions asked of a user's table."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.claims import CLAIMS, Claim
from analysis.coupling import ALPHA, CouplingResult, couple
from analysis.exponents import ExponentResult, exponents
from analysis.mediation import MediationResult, mediate
from analysis.panel import ALIASES, Data, canonical
from analysis.plugins import SettingError
from analysis.pooling import holm
from analysis.results import Outcome, Verdict
from analysis.run import Run
from analysis.segments import RecordError


def verify(runs: Data, claims: Sequence[str] | None = None) -> list[Verdict]:
    """What the runs say of each claim.

    P-values are adjusted by Holm within a claim. Where the claim is decided by a test, a verdict with p <= .05 that
    does not survive the adjustment becomes INCONCLUSIVE.

    Args:
        runs: records; or a table with columns run, step, a stratum (or optimizer and lr), x and y, and a mediator if
            there is one. A table's x and y may be called ece and lambda_max, its mediator exp_moment or Q.
        claims: names of files in ``analysis/claims``, or ``"module:Class"``; None for all files. Not for a table.

    Returns:
        The verdicts, claim by claim. A claim that lacks records says which.

    Raises:
        SettingError: no such claim, or a table that cannot be read.
    """
    if isinstance(runs, pd.DataFrame):
        if claims is not None:
            raise SettingError(f"claims = {claims!r}: a table is asked about its x and y only; expected None")
        return _verify_table(runs)
    records = list(runs)
    names = CLAIMS.names() if claims is None else list(claims)
    return [verdict for name in names for verdict in judge(CLAIMS.get(name, "claims")(), records)]


def judge(claim: Claim, runs: Sequence[Run]) -> list[Verdict]:
    """The verdicts of one claim, with Holm's adjustment over them."""
    try:
        verdicts = claim.judge(runs)
    except RecordError as error:
        return [claim.verdict(type(claim).__name__, Outcome.INCONCLUSIVE, f"a record cannot be read: {error}")]
    tested = [verdict for verdict in verdicts if verdict.pvalue is not None]
    adjusted = iter(holm([verdict.pvalue for verdict in tested if verdict.pvalue is not None]))
    return [verdict if verdict.pvalue is None else _adjust(verdict, next(adjusted), claim) for verdict in verdicts]


def _adjust(verdict: Verdict, pvalue_holm: float, claim: Claim) -> Verdict:
    verdict = replace(verdict, pvalue_holm=pvalue_holm)
    by_p = verdict.outcome is not Outcome.INCONCLUSIVE and verdict.pvalue is not None and verdict.pvalue <= ALPHA
    if not (claim.decided_by_p and by_p and pvalue_holm > ALPHA):
        return verdict
    reason = f"{verdict.outcome} alone, but Holm's p = {pvalue_holm:.3g} over the claim's tests ({verdict.reason})"
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason)


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """One row per verdict; see `Verdict.to_frame`."""
    if not verdicts:
        return pd.DataFrame()
    return pd.concat([verdict.to_frame() for verdict in verdicts], ignore_index=True)


def write_verdicts(verdicts: Sequence[Verdict], folder: str | Path) -> tuple[Path, Path]:
    """Write verdicts.json and verdicts.csv.

    Returns:
        Both paths. In the JSON, what was not computed is null.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = verdict_table(verdicts)
    as_json, as_csv = folder / "verdicts.json", folder / "verdicts.csv"
    rows = [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]
    as_json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    table.to_csv(as_csv, index=False)
    return as_json, as_csv


def _verify_table(table: pd.DataFrame) -> list[Verdict]:
    x, y = _column(table, "x", "ece"), _column(table, "y", "lambda_max")
    if x is None or y is None:
        raise SettingError(
            f"table: expected columns x and y (or ece and lambda_max); it has {', '.join(table.columns)}"
        )
    coupling = couple(table, x, y)
    found: list[tuple[str, str, str, CouplingResult | MediationResult | ExponentResult]] = [
        ("coupling", f"{x} and {y} are coupled", "level rho_seed", coupling)
    ]
    mediator = _column(table, "mediator", "exp_moment")
    if mediator is not None:
        explained = mediate(table, mediator, None, x, y)
        statement = f"{mediator} explains the coupling of {x} and {y}"
        found.append(("mediation", statement, "whitened residual rho_seed", explained))
        slopes = exponents(table, x, y, mediator)
        found.append(("exponent", f"{x} and {y} share an exponent in {mediator}", "difference of exponents", slopes))
    return [
        Verdict(
            claim=claim,
            statement=statement,
            outcome=Outcome(result.verdict),
            reason=result.reason,
            estimand=estimand,
            effect=result.estimate,
            interval=result.interval,
            pvalue=result.pvalue,
            runs=coupling.runs,
            window="all steps",
        )
        for claim, statement, estimand, result in found
    ]


def _column(table: pd.DataFrame, generic: str, name: str) -> str | None:
    spellings = [short for short, full in ALIASES.items() if full == canonical(name)]
    return next((column for column in (generic, name, *spellings) if column in table.columns), None)

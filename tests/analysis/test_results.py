"""Results: verdicts say what they found, tidy and escaped."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from analysis.results import Outcome, Result, Verdict


def verdict(**changes):
    settings = {
        "claim": "C1",
        "statement": "ECE and sharpness are coupled",
        "outcome": Outcome.SUPPORTED,
        "estimand": "rho_seed",
        "effect": 0.4321,
        "interval": (0.21, 0.6),
        "pvalue": 0.0123,
        "runs": 12,
        "window": "whole run",
        "reason": "more seeds would narrow the interval",
        "paper": 0.83,
    }
    return Verdict(**{**settings, **changes})


def test_a_verdict_reads_as_a_test():
    found = verdict()
    assert (found.verdict, found.estimate, found.interval, found.pvalue) == (
        "SUPPORTED",
        0.4321,
        (0.21, 0.6),
        0.0123,
    )
    for word in ("C1 SUPPORTED", "0.432", "[0.21, 0.6]", "p = 0.0123", "12 runs", "paper 0.83", "more seeds"):
        assert word in found.summary()
    assert str(found) == found.summary()


def test_an_outcome_is_its_name():
    assert verdict(outcome="REFUTED").outcome is Outcome.REFUTED
    assert Outcome.REFUTED == "REFUTED"
    assert [str(outcome) for outcome in Outcome] == ["SUPPORTED", "REFUTED", "INCONCLUSIVE"]


def test_what_was_not_computed_is_said_and_nan():
    found = verdict(outcome="INCONCLUSIVE", effect=None, interval=None, pvalue=None, paper=None, runs=1)
    assert "rho_seed = not computed; 1 run, whole run" in found.summary()
    row = found.to_frame().iloc[0]
    assert row[["effect", "low", "high", "pvalue", "pvalue_holm", "paper"]].isna().all()


def test_verdicts_stack_to_one_row_each():
    adjusted = dataclasses.replace(verdict(), pvalue_holm=0.05)
    frame = pd.concat([adjusted.to_frame(), verdict(interval=None).to_frame()], ignore_index=True)
    np.testing.assert_array_equal(frame["pvalue_holm"], [0.05, np.nan])
    assert list(frame["outcome"]) == ["SUPPORTED", "SUPPORTED"]
    assert (frame.loc[0, "low"], frame.loc[0, "high"]) == (0.21, 0.6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pvalue": 1.2}, r"C1: pvalue = 1.2, expected a number in \[0, 1\]"),
        ({"pvalue_holm": float("nan")}, "pvalue_holm = nan"),
        ({"interval": (1.0, 0.0)}, r"interval = \(1.0, 0.0\)"),
        ({"outcome": "LIKELY"}, "LIKELY"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        verdict(**changes)


def test_a_verdict_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict().effect = 1.0


def test_notebook_views_escape_what_they_show():
    view = verdict(statement="<script>x</script>")._repr_html_()
    assert "<script" not in view
    assert view.count("&lt;script&gt;") == 2


def test_a_result_must_say_and_tabulate():
    @dataclass(frozen=True)
    class Half(Result):
        def summary(self) -> str:
            return "half"

    with pytest.raises(TypeError, match="to_frame"):
        Half()

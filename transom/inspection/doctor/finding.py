"""Result of a check."""

from typing import Literal, NamedTuple

Verdict = Literal["problem", "warning", "ok", "not applicable"]

VERDICTS: tuple[Verdict, ...] = ("problem", "warning", "ok", "not applicable")
"""All verdicts in the order in which they are printed."""


class Finding(NamedTuple):
    """Result of one check.

    Attributes:
        verdict: "ok"; "warning" for a model that computes what it should, but wastes something or learned little; "problem" for a model
            that does not; "not applicable" for a check that does not exist for this model, or lacks data.
        message: one sentence with the measured figure and its bound, or the reason why the check was left out.
        advice: what to do; empty if nothing is to be done.
        value: the measured figure; None if the check has several.
        bound: bound of ``value``; None if it has none.
        name: name of the check; the list of checks sets it.
        seconds: duration of the check.
    """

    verdict: Verdict
    message: str
    advice: str = ""
    value: float | None = None
    bound: float | None = None
    name: str = ""
    seconds: float = 0.0


def within(value: float, bound: float, message: str, advice: str) -> Finding:
    """Return "ok" if ``value`` is at most ``bound``, else "problem" with the advice; NaN is a problem."""
    return Finding("ok", message, "", value, bound) if value <= bound else Finding("problem", message, advice, value, bound)


def not_applicable(reason: str) -> Finding:
    """Return the finding of a check that was left out."""
    return Finding("not applicable", reason)

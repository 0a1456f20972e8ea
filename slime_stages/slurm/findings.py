"""What `doctor` finds, a line each, and what it ends with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slime_stages.errors import MissingInputError, RetryableError, SlimeStagesError, UsageError

OK, ADVICE, PROBLEM = "ok", "advice", "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's."""

    level: str
    """ok, advice, or problem."""
    text: str
    hint: str | None = None
    exit_code: int = 0
    """Of a problem: what the error would end with."""


def exit_code_of(findings: Iterable[Finding]) -> int:
    """0 if there is no problem; what must be edited comes before what is missing, and both before what will pass."""
    found = {finding.exit_code for finding in findings if finding.level == PROBLEM}
    order = (UsageError.exit_code, MissingInputError.exit_code, RetryableError.exit_code)
    return next((code for code in order if code in found), max(found, default=0))


def fine(text: str) -> Finding:
    return Finding(level=OK, text=text)


def advice(text: str, hint: str) -> Finding:
    return Finding(level=ADVICE, text=text, hint=hint)


def problem(error: SlimeStagesError) -> Finding:
    """As if the error had ended the command, which goes on."""
    return Finding(level=PROBLEM, text=error.message, hint=error.hint, exit_code=error.exit_code)

"""What is wrong with a config: all of it at once, each with the value, where it came from and a way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slime_stages.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to mend."""

    message: str
    hint: str | None = None


def setting_problem(name: str, value: object, source: str, says: str, hint: str | None = None) -> Problem:
    return Problem(message=f"{name} = {shown(value)} ({source}) {says}", hint=hint)


def shown(value: object) -> str:
    """A value as the TOML file spells it, short enough for one line."""
    from slime_stages.config.describe import toml_value

    text = toml_value(value)
    return text if len(text) <= 80 else text[:77] + "..."


def raise_for(problems: Sequence[Problem]) -> None:
    """Nothing if there are none; else one error that lists them."""
    if not problems:
        return
    if len(problems) == 1:
        raise UsageError(problems[0].message, hint=problems[0].hint)
    lines = [f"the config has {len(problems)} problems"]
    for problem in problems:
        lines.append(f"  - {problem.message}")
        if problem.hint:
            lines.append(f"    {problem.hint}")
    raise UsageError("\n".join(lines), hint="slime-stages config --help")

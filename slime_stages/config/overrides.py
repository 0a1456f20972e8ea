"""Settings of one section on a command line, to be laid over a config that is frozen."""

from __future__ import annotations

from typing import Any

from slime_stages.config.checks import complaints
from slime_stages.config.fields import fields
from slime_stages.config.flags import Flags
from slime_stages.config.model import Config
from slime_stages.config.problems import Problem, raise_for, setting_problem
from slime_stages.config.settings import Settings, add_split_flags


def section_values(flags: Flags, section: str) -> dict[str, Any]:
    """By name, each checked on its own. UsageError for a value that is none, and for settings of another section."""
    settings = Settings()
    add_split_flags(settings, flags)
    raise_for(settings.problems)
    raise_for([_misplaced(settings, name, section) for name in settings.values if fields()[name].section != section])
    return settings.values


def check_section(config: Config, section: str) -> None:
    """UsageError for what the rules between settings say against values of the section."""
    raise_for(
        [
            setting_problem(name, getattr(config.section(section), name), f"[{section}]", says, hint)
            for name, says, hint in complaints(config)
            if fields()[name.partition(".")[0]].section == section
        ]
    )


def _misplaced(settings: Settings, name: str, section: str) -> Problem:
    says = f"belongs to [{fields()[name].section}], and only settings of [{section}] can be given here"
    return setting_problem(name, settings.values[name], settings.sources[name], says, "leave it out")

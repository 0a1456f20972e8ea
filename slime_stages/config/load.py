"""From defaults, a TOML file and flags to one checked config that remembers where each value came from.

Relative paths, in the file as in flags, are relative to the current directory, and absolute in the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_stages.config.advice import warnings_of
from slime_stages.config.checks import complaints
from slime_stages.config.derive import derive
from slime_stages.config.fields import fields
from slime_stages.config.files import add_files
from slime_stages.config.flags import Flags
from slime_stages.config.model import Config
from slime_stages.config.problems import Problem, raise_for, setting_problem
from slime_stages.config.settings import Settings, add_flags, add_mapping, add_split_flags, add_toml, validated
from slime_stages.config.toml import read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """A config, and why it is so."""

    config: Config

    sources: Mapping[str, str]
    """Of every setting: `default`, `config.toml:12`, `--lr` or `derived from ...`; or by `sglang.NAME`."""

    warnings: tuple[str, ...]
    """Settings that have no effect or surprise people."""

    def describe(self, *, sources: bool = False) -> str:
        """The config as a TOML file that resolves to itself."""
        from slime_stages.config.describe import describe

        return describe(self.config, self.sources if sources else None)


def resolve(
    toml_path: Path | str | None = None, flags: Flags | Sequence[str] | Mapping[str, Any] = ()
) -> ResolvedConfig:
    """`flags`: words of a command line, the same taken apart, or settings by name. One UsageError has all problems."""
    settings = Settings()
    if toml_path is not None:
        add_toml(settings, read_toml(Path(toml_path)))
    if isinstance(flags, Flags):
        add_split_flags(settings, flags)
    elif isinstance(flags, Mapping):
        add_mapping(settings, flags)
    else:
        add_flags(settings, flags)

    add_files(settings)
    config = validated(settings)
    raise_for(settings.problems)
    assert config is not None

    sources = {name: settings.sources.get(name, "default") for name in fields()} | settings.sources
    config, derived = derive(config, sources)
    sources |= derived
    raise_for([_problem(config, sources, *complaint) for complaint in complaints(config)])
    return ResolvedConfig(config=config, sources=sources, warnings=tuple(warnings_of(config, sources)))


def _problem(config: Config, sources: Mapping[str, str], name: str, says: str, hint: str | None) -> Problem:
    table, _, option = name.partition(".")
    value = config.flat()[table]
    return setting_problem(name, value[option] if option else value, sources[name], says, hint)

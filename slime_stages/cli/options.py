"""What commands have in common: the run, the config file, and every setting of the config as a flag.

    @takes_config_flags
    def command(ctx: typer.Context, config: ConfigFile = None) -> None:
        resolved = resolve_from(ctx, config)

Settings are taken off the command line before Typer reads it: slime's lists have several words
(`--rollout-stop A B`), and `--sglang-*` flags are not known beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from slime_stages.config import ResolvedConfig
    from slime_stages.config.fields import ConfigField
    from slime_stages.config.flags import Flags

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings as TOML.")]
RunFolder = Annotated[Path | None, typer.Option("--run", metavar="RUN", help="Folder of the run.", show_default=False)]

Function = TypeVar("Function", bound=Callable[..., Any])

CLICK_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Newer Typers carry click inside, and name only this subclass of its UsageError."""

FLAGS = "slime_stages.flags"
"""Where a command's context holds the settings that were on its command line."""


class ConfigCommand(TyperCommand):
    """A command that also takes every setting as a flag."""

    shown_sections: Collection[str] | None = None
    """Whose settings `--help` lists; None: all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from slime_stages.config.flags import split_flags

        flags = split_flags(args)
        ctx.meta[FLAGS] = flags
        try:
            return super().parse_args(ctx, flags.rest)
        except CLICK_USAGE_ERROR as error:
            if hasattr(error, "possibilities"):
                known = [option for parameter in self.get_params(ctx) for option in parameter.opts]
                error.possibilities = get_close_matches(error.option_name, known + list(setting_flags()), n=1)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from slime_stages.config.fields import fields, sections

        super().format_options(ctx, formatter)
        for name, section in sections().items():
            if self.shown_sections is not None and name not in self.shown_sections:
                continue
            rows = [help_row(setting) for setting in fields().values() if setting.section == name]
            with formatter.section(f"[{name}] {section.title}"):
                formatter.write_dl(rows)


def takes_config_flags(function: Function) -> Function:
    """Mark a command's function; what was typed comes by `collect(ctx)`."""
    function.command_class = ConfigCommand  # type: ignore[attr-defined]
    return function


def takes_flags_of(*sections: str) -> Callable[[Function], Function]:
    """The same where only settings of these sections mean anything; the function it calls refuses the others."""

    def mark(function: Function) -> Function:
        own = type("SectionCommand", (ConfigCommand,), {"shown_sections": sections})
        function.command_class = own  # type: ignore[attr-defined]
        return function

    return mark


def collect(ctx: typer.Context) -> Flags:
    """The settings on the command line; false if there are none."""
    flags: Flags = ctx.meta[FLAGS]
    return flags


def resolve_from(ctx: typer.Context, config_file: Path | None) -> ResolvedConfig:
    """The config of this command line; warnings go to stderr."""
    from slime_stages.config import resolve

    resolved = resolve(config_file, collect(ctx))
    for warning in resolved.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return resolved


def setting_flags() -> list[str]:
    """Every flag of the config, the ones that turn something off included."""
    from slime_stages.config.fields import fields

    settings = [setting for setting in fields().values() if setting.kind != "passthrough"]
    return [flag for setting in settings for flag in (setting.flag, setting.off_flag) if flag is not None]


def help_row(setting: ConfigField) -> tuple[str, str]:
    from slime_stages.config.describe import toml_value

    if setting.kind == "passthrough":
        return f"--{setting.name}-NAME [VALUE ...]", setting.description
    usage = f"{setting.flag} / {setting.off_flag}" if setting.off_flag else setting.flag
    if setting.kind != "switch":
        usage += f" {setting.type_label if '|' in setting.type_label else setting.type_label.upper()}"
    if setting.required:
        return usage, f"{setting.description} [required]"
    has_default = setting.default not in (None, False, (), {})
    return usage, setting.description + (f" [default: {toml_value(setting.default)}]" if has_default else "")

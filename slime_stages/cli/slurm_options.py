"""sbatch's options on our command lines: `--slurm-partition low` for all jobs, `--slurm-rollout-gpus 2` for a stage's.

    @takes_slurm_options
    @takes_config_flags                     above it, where a command takes settings too
    def command(ctx: typer.Context) -> None:
        header = with_overrides(read_header(path, stage), slurm_options(ctx))

They are taken off a command line before Typer reads it, since sbatch alone knows them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand

PREFIX = "--slurm-"
STAGES = ("rollout", "reward", "train", "sync", "chain", "serve")
CONTEXT_KEY = "slime_stages.slurm"

Function = TypeVar("Function", bound=Callable[..., Any])

if TYPE_CHECKING:
    _Command = TyperCommand
else:
    _Command = object


class SlurmOptions(_Command):
    """Mixed into a class of command: takes the options off, and says in `--help` that there are such."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[CONTEXT_KEY], rest = take_slurm_options(args)
        return super().parse_args(ctx, rest)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        rows = [
            (f"{PREFIX}OPTION [VALUE]", "Any option of sbatch, before what sbatch/STAGE.sbatch says."),
            (f"{PREFIX}STAGE-OPTION [VALUE]", f"The same for the jobs of one stage: {', '.join(STAGES)}."),
        ]
        with formatter.section("SLURM"):
            formatter.write_dl(rows)


def takes_slurm_options(function: Function) -> Function:
    """Mark a command's function; what was typed comes by `slurm_options(ctx)`."""
    base = getattr(function, "command_class", TyperCommand)
    function.command_class = type("SlurmCommand", (SlurmOptions, base), {})  # type: ignore[attr-defined]
    return function


def slurm_options(ctx: typer.Context) -> dict[str, str | bool]:
    """The options on the command line, by `partition` or `rollout.gpus`; True for one without a value."""
    found: dict[str, str | bool] = ctx.meta[CONTEXT_KEY]
    return found


def take_slurm_options(arguments: Sequence[str]) -> tuple[dict[str, str | bool], list[str]]:
    """(options, the other words) of a command line. Nothing after `--` is an option."""
    from slime_stages.config.flags import is_flag
    from slime_stages.slurm.options import BARE

    options: dict[str, str | bool] = {}
    queue = list(arguments)
    rest: list[str] = []
    while queue:
        word = queue.pop(0)
        if word == "--":
            return options, [*rest, word, *queue]
        if not word.startswith(PREFIX) or word == PREFIX:
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(PREFIX).partition("=")
        stage, dash, option = name.partition("-")
        is_own = bool(dash and stage in STAGES)
        if not equals and (option if is_own else name) not in BARE and queue and not is_flag(queue[0]):
            equals, value = "=", queue.pop(0)
        options[f"{stage}.{option}" if is_own else name] = value if equals else True
    return options, rest

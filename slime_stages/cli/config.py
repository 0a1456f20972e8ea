"""`slime-stages config`: what a config comes to."""

from __future__ import annotations

from typing import Annotated

import typer

from slime_stages.cli.options import ConfigFile, RunFolder, collect, resolve_from, takes_config_flags
from slime_stages.errors import UsageError

Explain = Annotated[bool, typer.Option("--explain", help="Say where each value came from.")]


@takes_config_flags
def command(ctx: typer.Context, run: RunFolder = None, config: ConfigFile = None, explain: Explain = False) -> None:
    """Print the settings as they would be used, as a TOML file that gives the same again.

    Of a file and flags, or of a run, whose settings were frozen when it was made.
    """
    if run is None:
        print(resolve_from(ctx, config).describe(sources=explain), end="")
        return
    if config is not None or collect(ctx):
        raise UsageError(
            f"the settings of {run} are frozen", hint=f"slime-stages config --run {run}, without --config and settings"
        )
    from slime_stages.config.describe import describe, frozen_sources
    from slime_stages.config.frozen import read_frozen
    from slime_stages.run.rundir import find_run

    path = find_run(run).config_path
    frozen = read_frozen(path)
    print(describe(frozen, frozen_sources(frozen, str(path)) if explain else None), end="")

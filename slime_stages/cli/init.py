"""`slime-stages init`: start a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slime_stages.cli.options import ConfigFile, resolve_from, takes_config_flags

NewRun = Annotated[Path, typer.Option("--run", metavar="RUN", help="Folder of the new run.")]


@takes_config_flags
def command(ctx: typer.Context, run: NewRun, config: ConfigFile = None) -> None:
    """Start a run: check its config, read its prompts, and freeze both in a folder.

    Prints the folder. Nothing is generated yet; `slime-stages iter` or the stages do that.
    """
    resolved = resolve_from(ctx, config)
    from slime_stages.launch.start_run import change_config, start_run
    from slime_stages.run.rundir import RunDir

    run_dir = RunDir(run.absolute())
    if run_dir.recover():
        change_config(run_dir, resolved.config, allowed=False)
    else:
        start_run(run_dir, resolved.config)
    typer.echo(run_dir.root)

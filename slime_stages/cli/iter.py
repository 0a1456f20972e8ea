"""`slime-stages iter`: run iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.options import ConfigFile, RunFolder, collect, resolve_from, takes_config_flags

if TYPE_CHECKING:
    from slime_stages.rundir import RunDir

Count = Annotated[
    int, typer.Option("--n", metavar="N", min=0, help="Iterations to add; 0 reads all there are and mends them.")
]
AcceptStale = Annotated[bool, typer.Option("--accept-stale", help="Go on with outputs whose inputs have changed.")]
ChangeConfig = Annotated[
    bool, typer.Option("--change-config", help="Use the settings given from the next iteration on, and record it.")
]


@takes_config_flags
def command(
    ctx: typer.Context,
    n: Count = 1,
    run: RunFolder = None,
    config: ConfigFile = None,
    accept_stale: AcceptStale = False,
    change_config: ChangeConfig = False,
) -> None:
    """Run iterations: rollout, reward, train and sync, in turn.

    Starts the run if there is none and settings are given. What is committed is not done again: after an
    interruption the same command goes on.
    """
    from slime_stages.cli.display import LoopDisplay, print_summary
    from slime_stages.launch.iterate import iterate, iterations_to_run
    from slime_stages.launch.local import LocalExecutor

    run_dir = ready_run(ctx, run, config, change=change_config)
    iterations = iterations_to_run(run_dir, n)
    with LoopDisplay(iterations) as display, LocalExecutor(on_progress=display.on_progress) as executor:
        iterate(run_dir, iterations, executor=executor, on_event=display.on_event, accept_stale=accept_stale)
    print_summary(run_dir, iterations)


def ready_run(ctx: typer.Context, run: Path | None, config: Path | None, *, change: bool) -> RunDir:
    """The run to work on: begun now, if it is not there and there is a config; otherwise checked against it."""
    from slime_stages.launch.start_run import change_config, mend_run, start_run
    from slime_stages.rundir import RunDir, find_run

    given = config is not None or bool(collect(ctx))
    if run is not None and not RunDir(run.absolute()).recover() and given:
        run_dir = RunDir(run.absolute())
        start_run(run_dir, resolve_from(ctx, config).config)
        return run_dir
    run_dir = find_run(run)
    mend_run(run_dir)
    if given:
        change_config(run_dir, resolve_from(ctx, config).config, allowed=change)
    return run_dir

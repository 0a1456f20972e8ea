"""`slime-stages iter`: run iterations, here or as jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from slime_stages.cli.chain import DEFAULT_SBATCH, Drive, SbatchFolder
from slime_stages.cli.options import ConfigFile, RunFolder, collect, resolve_from, takes_config_flags
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options
from slime_stages.errors import UsageError

if TYPE_CHECKING:
    from slime_stages.run.rundir import RunDir

Count = Annotated[
    int, typer.Option("--n", metavar="N", min=0, help="Iterations to add; 0 reads all there are and mends them.")
]
Executor = Annotated[
    Literal["local", "slurm"],
    typer.Option(help="local: here, one stage after the other. slurm: as jobs; returns at once."),
]
AcceptStale = Annotated[bool, typer.Option("--accept-stale", help="Go on with outputs whose inputs have changed.")]
ChangeConfig = Annotated[
    bool, typer.Option("--change-config", help="Use the settings given from the next iteration on, and record it.")
]
Lookahead = Annotated[int, typer.Option(metavar="K", min=1, help="slurm: iterations whose jobs are queued at once.")]
Parallelism = Annotated[
    int | None, typer.Option("--array-parallelism", metavar="K", min=1, help="slurm: array tasks that run at once.")
]
Retries = Annotated[int, typer.Option(metavar="K", min=0, help="slurm: retries of a shard or stage that failed.")]
Follow = Annotated[bool, typer.Option("--follow", help="slurm: watch until it is done; Ctrl-C leaves the jobs alone.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="slurm: print the jobs that would be submitted.")]


@takes_slurm_options
@takes_config_flags
def command(
    ctx: typer.Context,
    n: Count = 1,
    run: RunFolder = None,
    config: ConfigFile = None,
    executor: Executor = "local",
    accept_stale: AcceptStale = False,
    change_config: ChangeConfig = False,
    sbatch: SbatchFolder = DEFAULT_SBATCH,
    lookahead: Lookahead = 2,
    array_parallelism: Parallelism = None,
    max_retries: Retries = 2,
    follow: Follow = False,
    drive: Drive = False,
    dry_run: DryRun = False,
) -> None:
    """Run iterations: rollout, reward, train and sync, in turn.

    Starts the run if there is none and settings are given. What is committed is not done again: after an
    interruption the same command goes on. With `--executor slurm` it submits jobs and returns.
    """
    from slime_stages.launch.iterate import iterations_to_run

    overrides = slurm_options(ctx)
    if executor == "local" and (overrides or follow or drive or dry_run):
        raise UsageError(
            "--slurm-*, --follow, --drive and --dry-run are for jobs", hint="add --executor slurm, or leave them out"
        )
    from slime_stages.cli import chain

    run_dir = ready_run(ctx, run, config, change=change_config)
    if drive and chain.is_driver_put_back(run_dir):
        chain.drive(run_dir)
        return
    iterations = iterations_to_run(run_dir, n)
    if executor == "local":
        run_here(run_dir, iterations, accept_stale=accept_stale)
        return

    wanted = chain.new_chain(
        run_dir,
        iterations.stop,
        adds=n > 0,
        sbatch=sbatch,
        lookahead=lookahead,
        overrides=overrides,
        array_parallelism=array_parallelism,
        max_retries=max_retries,
        accept_stale=accept_stale,
        is_driven=drive,
    )
    if dry_run:
        from slime_stages.cli.plan import print_plan

        print_plan(run_dir, iterations, wanted)
        return
    chain.submit_chain(run_dir, wanted)
    stay(run_dir, drive=drive, follow=follow)


def stay(run: RunDir, *, drive: bool, follow: bool) -> None:
    """With the jobs that were submitted: see to the next ones, or watch, or neither."""
    if drive:
        from slime_stages.cli.chain import drive as see_to

        see_to(run)
    elif follow:
        from slime_stages.cli.status import watch

        watch(run)


def run_here(run: RunDir, iterations: range, *, accept_stale: bool) -> None:
    """The iterations on this machine, with a progress bar, and a summary at the end."""
    from slime_stages.cli.display import LoopDisplay, print_summary
    from slime_stages.drain import install_drain
    from slime_stages.launch.iterate import iterate
    from slime_stages.launch.local import LocalExecutor

    if not iterations:
        print(f"{run.root} has no iterations yet\n\nhint: slime-stages iter --run {run.root} --n 1", file=sys.stderr)
        return
    install_drain()
    with LoopDisplay(iterations) as display, LocalExecutor(on_progress=display.on_progress) as executor:
        iterate(
            run,
            iterations,
            executor=executor,
            on_event=display.on_event,
            on_stream=display.on_stream,
            accept_stale=accept_stale,
        )
    print_summary(run, iterations)


def ready_run(ctx: typer.Context, run: Path | None, config: Path | None, *, change: bool) -> RunDir:
    """The run to work on: begun now, if it is not there and there is a config; otherwise checked against it."""
    from slime_stages.launch.start_run import (
        change_config,
        check_plugins_of,
        check_trainer,
        current_revision,
        mend_run,
        start_run,
    )
    from slime_stages.run.rundir import RunDir, find_run
    from slime_stages.stage import read_config

    given = config is not None or bool(collect(ctx))
    if run is not None and not RunDir(run.absolute()).recover() and given:
        run_dir, wanted = RunDir(run.absolute()), resolve_from(ctx, config).config
        check_trainer(wanted)
        start_run(run_dir, wanted)
        return run_dir
    run_dir = find_run(run)
    mend_run(run_dir)
    if given:
        change_config(run_dir, resolve_from(ctx, config).config, allowed=change)
    check_plugins_of(run_dir)
    check_trainer(read_config(run_dir, current_revision(run_dir)))
    return run_dir

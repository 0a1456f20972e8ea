"""`slime-stages cancel`: take a run's jobs out of the queue."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.errors import UsageError

STAGES = ("rollout", "reward", "train", "sync", "chain", "serve")

Stage = Annotated[str | None, typer.Argument(metavar="[STAGE]", help=f"{', '.join(STAGES)}. [default: all]")]
Iteration = Annotated[int | None, typer.Option("--iter", metavar="I", min=0, help="Iteration. [default: all]")]


def command(stage: Stage = None, run: RunFolder = None, iteration: Iteration = None) -> None:
    """Cancel the jobs of a run, those that run and those that wait, and stop its chain.

    What is committed stays, and so does what a job has finished of its work: `slime-stages iter` goes on from there.
    """
    from slime_stages.launch.cancel import cancel
    from slime_stages.run.rundir import find_run, program_of

    if stage is not None and program_of(stage) not in STAGES:
        raise UsageError(f"there is no stage {stage}", hint=f"one of {', '.join(STAGES)}")
    run_dir = find_run(run)
    count = cancel(run_dir, stage=stage, iteration=iteration)
    print(f"{count or 'no'} job{'' if count == 1 else 's'} cancelled", file=sys.stderr)
    print(f"\nhint: slime-stages iter --n 0 --executor slurm --run {run_dir.root}   goes on", file=sys.stderr)

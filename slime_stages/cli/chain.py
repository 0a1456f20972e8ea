"""`slime-stages iter --executor slurm` and `slime-stages advance`: iterations as jobs that submit one another."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.errors import DataError, RetryableError, UsageError

if TYPE_CHECKING:
    from slime_stages.launch.chain import Advance
    from slime_stages.launch.chain_state import Chain
    from slime_stages.run.rundir import RunDir
    from slime_stages.stage import StageCall

POLL_SECONDS = 20.0
MOST_LOOKS = 10
DEFAULT_SBATCH = Path("sbatch")

SbatchFolder = Annotated[
    Path, typer.Option("--sbatch", metavar="FOLDER", help="Where rollout.sbatch and the other headers are.")
]


def new_chain(
    run: RunDir,
    target: int,
    *,
    adds: bool,
    sbatch: Path,
    lookahead: int,
    overrides: Mapping[str, str | bool],
    array_parallelism: int | None,
    max_retries: int,
    accept_stale: bool,
    is_driven: bool = False,
) -> Chain:
    """The chain of a command line. One that is to mend goes on as far as the run's last one was to go."""
    from slime_stages.launch.chain_state import Chain, read_chain

    known = read_chain(run)
    if known is not None and not adds:
        target = max(target, known.target)
    folder = sbatch.absolute()
    if not (folder / "rollout.sbatch").is_file():
        raise UsageError(
            f"there is no {folder}/rollout.sbatch", hint="--sbatch FOLDER   names the folder of your cluster's headers"
        )
    return Chain(
        target=target,
        sbatch_folder=str(folder),
        lookahead=lookahead,
        overrides=dict(overrides),
        array_parallelism=array_parallelism,
        max_retries=max_retries,
        accept_stale=accept_stale,
        is_driven=is_driven,
    )


def submit_chain(run: RunDir, chain: Chain) -> None:
    """Begin the chain; stdout gets the ids of the jobs, one a line."""
    from slime_stages.launch.chain import begin_chain

    result = begin_chain(run, chain)
    print_submitted(run, result)
    if result.is_taken:
        raise RetryableError(
            f"another process is submitting jobs of {run.root} at this moment",
            hint=f"slime-stages status --run {run.root}",
        )


def submit_calls(calls: Sequence[StageCall], *, sbatch: Path, overrides: Mapping[str, str | bool]) -> None:
    """Submit stage calls, those of one stage of an iteration as one array; their job ids go to stdout."""
    from slime_stages.launch.single import submit_alone
    from slime_stages.launch.start_run import check_plugins_of
    from slime_stages.run.rundir import RunDir

    for root in dict.fromkeys(call.run for call in calls):
        check_plugins_of(RunDir(root))
    for attempt in submit_alone(calls, sbatch=sbatch.absolute(), overrides=overrides):
        print(f"submitted {attempt.job_id}  {attempt.title}", file=sys.stderr)
        typer.echo(attempt.job_id)


def print_submitted(run: RunDir, result: Advance) -> None:
    """What was submitted, for people on stderr; raises if the chain has stopped."""
    for attempt in result.submitted:
        after = f"  after {', '.join(attempt.dependencies)}" if attempt.dependencies else ""
        print(f"submitted {attempt.job_id}  {attempt.title}{after}", file=sys.stderr)
        typer.echo(attempt.job_id)
    if result.stopped:
        raise DataError(result.stopped, hint=result.advice)
    if result.submitted:
        print(f"\nhint: slime-stages status --run {run.root} --watch", file=sys.stderr)


def drive(run: RunDir) -> None:
    """Advance the chain from here until it is complete: for clusters whose compute nodes may not submit.

    A driver that is a job goes back into the queue when it is told to end.
    """
    from slime_stages.drain import Drained, install_drain
    from slime_stages.slurm.requeue import requeue_self

    install_drain()
    try:
        while not drive_once(run):
            time.sleep(POLL_SECONDS)
    except Drained:
        requeue_self()
        raise


def drive_once(run: RunDir) -> bool:
    """Submit what is needed now; whether the chain is complete."""
    from slime_stages.drain import count_progress
    from slime_stages.launch.chain import advance
    from slime_stages.launch.chain_state import read_chain, write_chain

    chain = read_chain(run)
    if chain is not None and not chain.is_driven:
        write_chain(run, replace(chain, is_driven=True))
    try:
        result = advance(run)
    except RetryableError as error:
        print(f"{error}; trying again", file=sys.stderr)
        return False
    count_progress(len(result.submitted))
    print_submitted(run, result)
    return result.complete


def is_driver_put_back(run: RunDir) -> bool:
    """Whether this is the job of a driver that has begun its chain already, before it was put back into the queue."""
    from slime_stages.launch.chain_state import read_chain

    chain = read_chain(run)
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0 and chain is not None and chain.is_driven


Drive = Annotated[
    bool, typer.Option("--drive", help="Stay and submit until all is done, for clusters whose jobs may not submit.")
]
ByJob = Annotated[bool, typer.Option("--by-job", hidden=True)]


def command(run: RunFolder = None, drive_it: Drive = False, by_job: ByJob = False) -> None:
    """Submit whatever a run's chain of jobs needs next; its jobs call this themselves."""
    from slime_stages.launch.chain import advance
    from slime_stages.launch.chain_state import read_chain
    from slime_stages.run.rundir import find_run

    run_dir = find_run(run)
    if read_chain(run_dir) is None:
        raise UsageError(
            f"{run_dir.root} has no chain of jobs", hint=f"slime-stages iter --run {run_dir.root} --executor slurm"
        )
    if drive_it:
        drive(run_dir)
        return
    for _ in range(MOST_LOOKS):
        result = advance(run_dir, by_job=by_job)
        print_submitted(run_dir, result)
        if not (by_job and result.is_taken):
            break
        time.sleep(random.uniform(1.0, 5.0))  # whoever else submits may have looked before this job's output was there

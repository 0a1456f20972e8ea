"""`slime-stages logs`: read what a job printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.errors import MissingInputError

POLL_SECONDS = 1.0
QUIET_SECONDS = 30.0
"""After so long without a word, the scheduler is asked whether the job is still there."""
BLOCK_BYTES = 1 << 16
LINES = 200

Stage = Annotated[
    str | None,
    typer.Argument(
        metavar="[STAGE]", help="rollout, reward, train, sync, chain or engine. [default: what failed last]"
    ),
]
Iteration = Annotated[int | None, typer.Option("--iter", metavar="I", min=0, help="Iteration.")]
Shard = Annotated[int | None, typer.Option("--shard", metavar="K", min=0, help="Shard.")]
EvalName = Annotated[str | None, typer.Option("--eval", metavar="NAME", help="An evaluation set instead of training.")]
Attempt = Annotated[int | None, typer.Option("--attempt", metavar="N", min=0, help="Submission. [default: the last]")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, until the job ends.")]
Stdout = Annotated[
    bool, typer.Option("--stdout/--stderr", help="Which of the two. [default: stderr, with all messages]")
]
Lines = Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="Last lines to print; 0: all.")]


def command(
    stage: Stage = None,
    run: RunFolder = None,
    iteration: Iteration = None,
    shard: Shard = None,
    split: EvalName = None,
    attempt: Attempt = None,
    follow: Follow = False,
    stdout: Stdout = False,
    lines: Lines = LINES,
) -> None:
    """Print the log of a job: of what failed last, else of what runs now, unless one is asked for.

    The log goes to stdout; which file it is, and of what, to stderr.
    """
    from slime_stages.launch.job_logs import Wanted, find_log, is_over
    from slime_stages.run.rundir import find_run

    run_dir = find_run(run)
    wanted = Wanted(stage=stage, iteration=iteration, shard=shard, split=split, attempt=attempt)
    log = find_log(run_dir, wanted)
    path = log.stdout if stdout and log.stdout is not None else log.path
    print(f"{log.title}{f' {log.about}' if log.about else ''}\n{path}\n", file=sys.stderr, flush=True)
    if not path.exists() and not follow:
        raise MissingInputError(
            f"{path} is not there: {log.about or 'the job has not begun'}",
            hint=f"slime-stages logs --run {run_dir.root} --follow   waits for it",
        )
    print_log(path, lines=lines, until=(lambda: is_over(run_dir, log)) if follow else None)


def print_log(path: Path, *, lines: int, until: Callable[[], bool] | None) -> None:
    """The last lines; and what comes, until it is quiet and `until` says that it is over."""
    out = sys.stdout.buffer
    position = 0
    if path.exists():
        data, left_out = last_lines(path, lines)
        if left_out:
            print("(earlier lines are left out; --lines 0 prints all)", file=sys.stderr, flush=True)
        out.write(data)
        out.flush()
        position = path.stat().st_size
    quiet_since = 0.0  # so that a log that is over is known to be at once
    while until is not None:
        if path.exists() and path.stat().st_size > position:
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            out.write(data)
            out.flush()
            position, quiet_since = position + len(data), time.monotonic()
        elif time.monotonic() - quiet_since > QUIET_SECONDS:
            if until():
                return
            quiet_since = time.monotonic()
        time.sleep(POLL_SECONDS)


def last_lines(path: Path, count: int) -> tuple[bytes, bool]:
    """(the last `count` lines, or all for 0; whether there are others)."""
    with path.open("rb") as file:
        position = file.seek(0, 2)
        data = b""
        while position and (count == 0 or data.count(b"\n") <= count):
            step = min(BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    found = data.splitlines(keepends=True)
    kept = found[-count:] if count else found
    return b"".join(kept), position > 0 or len(kept) < len(found)

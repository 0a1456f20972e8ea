"""What jobs are called, and how many tasks go into one."""

from __future__ import annotations

from collections.abc import Sequence

from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import Attempt, shard_ranges

SIGNAL_SECONDS = 120
"""How long before its time limit a job is told of it."""

RANGES_SHOWN = 8


def job_name(run: RunDir) -> str:
    """The name that all jobs of a run have, and no others."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run.run_id())


def comment_of(run: RunDir, attempt: Attempt) -> str:
    """What squeue says of a job, for people; no other attempt of any run has the same."""
    where = f"{attempt.stage} {attempt.iteration}" + ("" if attempt.split == "train" else f" of {attempt.split}")
    if ranges := shard_ranges(attempt.shards):
        shown, more = ranges.split(",")[:RANGES_SHOWN], ranges.count(",") >= RANGES_SHOWN
        where += f", shard{'s' * (len(attempt.shards) > 1)} {', '.join(shown)}" + (" …" if more else "")
    return f"slime-stages {run.run_id()}: {where} (attempt {attempt.number})"


def split_shards(shards: Sequence[int | None], max_array_size: int) -> list[tuple[int | None, ...]]:
    """The shards in arrays that SLURM accepts; `max_array_size` is its MaxArraySize."""
    size = max(1, max_array_size)
    return [tuple(shards[begin : begin + size]) for begin in range(0, len(shards), size)]

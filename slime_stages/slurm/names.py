"""What jobs are called, and how many tasks go into one."""

from __future__ import annotations

from collections.abc import Sequence

from slime_stages.rundir import RunDir
from slime_stages.slurm.jobs import Attempt

SIGNAL_SECONDS = 120
"""How long before its time limit a job is told of it."""

RANGES_SHOWN = 8


def job_name(run: RunDir) -> str:
    """The name that all jobs of a run have, and no others."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run.run_id())


def comment_of(run: RunDir, attempt: Attempt) -> str:
    """What squeue says of a job, for people; no other attempt of any run has the same."""
    where = f"{attempt.stage} {attempt.iteration}" + ("" if attempt.split == "train" else f" of {attempt.split}")
    numbers = [shard for shard in attempt.shards if shard is not None]
    if numbers:
        where += f", shard{'s' * (len(numbers) > 1)} {_ranges(numbers)}"
    return f"slime-stages {run.run_id()}: {where} (attempt {attempt.number})"


def split_shards(shards: Sequence[int | None], max_array_size: int) -> list[tuple[int | None, ...]]:
    """The shards in arrays that SLURM accepts; `max_array_size` is its MaxArraySize."""
    size = max(1, max_array_size)
    return [tuple(shards[begin : begin + size]) for begin in range(0, len(shards), size)]


def _ranges(numbers: Sequence[int]) -> str:
    """`0-7, 9` for 0 to 7 and 9."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:RANGES_SHOWN]]
    return ", ".join(shown) + (" …" if len(ranges) > RANGES_SHOWN else "")

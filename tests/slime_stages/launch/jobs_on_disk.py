"""Submissions written with the functions that submit, for what tests say became of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import Attempt, TaskEnd, attempts_of, claim_attempt, write_end


def submitted(
    run: RunDir, stage: str, iteration: int, job_id: str, *shards: int, split: str = "train", ago: float = 600.0
) -> Attempt:
    """A job, or an array of several shards, that was submitted `ago` seconds ago."""
    number = len(attempts_of(run, stage, iteration, split))
    attempt = claim_attempt(run, stage, iteration, split=split, shards=shards or (None,), after=number)
    assert attempt is not None
    attempt = attempt.with_job(job_id, is_array=len(shards) > 1)
    return submitted_at(attempt, time.time() - ago)


def submitted_at(attempt: Attempt, moment: float) -> Attempt:
    attempt = replace(attempt, submitted=moment, claimed=moment)
    attempt.save()
    return attempt


def ended(attempt: Attempt, shard: int | None, exit_code: int, message: str = "", *, ago: float = 60.0) -> None:
    """What the task told at its end."""
    hint = "type this" if exit_code else None
    end = TaskEnd(exit_code=exit_code, message=message, hint=hint, finished=time.time() - ago)
    write_end(attempt, shard, end)


def printed(attempt: Attempt, shard: int | None, lines: Sequence[str], *, stdout: Sequence[str] = ()) -> None:
    for path, text in zip(attempt.log_paths(shard), (stdout, lines), strict=True):
        path.write_text("".join(f"{line}\n" for line in text))

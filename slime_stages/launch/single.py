"""Single stage calls as jobs: `slime-stages rollout --iter 5 --shard 3 --submit`, outside any chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from slime_stages.errors import RetryableError
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.rundir import RunDir, program_of
from slime_stages.slurm.header import read_header, with_overrides
from slime_stages.slurm.jobs import Attempt, attempts_of, claim_attempt
from slime_stages.slurm.queue import scheduler_limits
from slime_stages.slurm.submission import Submission
from slime_stages.slurm.submit import split_shards, submit_attempt
from slime_stages.stage import StageCall, read_run_plan, supersede


def submit_alone(calls: Sequence[StageCall], *, sbatch: Path, overrides: Mapping[str, str | bool]) -> Iterator[Attempt]:
    """Submit the calls, those of one stage of an iteration together; they wait for those of the stage before that are
    submitted along. What is forced is set aside first.

    RetryableError if another process submits the same at this moment.
    """
    latest: dict[tuple[Path, int, str], list[str]] = {}
    for (root, stage, iteration, split), group in groupby(calls, lambda c: (c.run, c.stage, c.iteration, c.split)):
        run, same = RunDir(root), list(group)
        program = program_of(stage)
        header = with_overrides(read_header(sbatch / f"{program}.sbatch", program), overrides)
        plan = read_run_plan(run, iteration, split)
        for call in same:
            path = shard_manifest_path(run, plan, stage, call.shard)
            if call.force and path.exists():
                supersede(path)
        before, submitted = latest.get((root, iteration, split), []), []
        for shards in split_shards([call.shard for call in same], scheduler_limits().max_array_size):
            known = attempts_of(run, stage, iteration, split)
            number = max((attempt.number for attempt in known), default=-1) + 1
            attempt = claim_attempt(
                run, stage, iteration, split=split, shards=shards, after=number, until=same[0].until
            )
            if attempt is None:
                raise RetryableError(
                    f"another process is submitting {stage} {iteration} at this moment",
                    hint=f"slime-stages status --run {root}",
                )
            attempt = submit_attempt(Submission(run=run, attempt=attempt, header=header, dependencies=before))
            submitted += [attempt.job_id] if attempt.job_id else []
            yield attempt
        latest[root, iteration, split] = submitted

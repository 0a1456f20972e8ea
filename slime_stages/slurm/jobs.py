"""Jobs on disk: a folder for each submission, readable without us and enough to run it again by hand.

    RUN/jobs/000012-rollout/attempt-000/            the first submission for iteration 12's rollout
        job.json        what was submitted, as what; `job_id` is absent while sbatch has not answered
        command.sh      does the same work by hand
        script.sbatch   what sbatch was given
        JOB_TASK_log.out, .err                      what the job printed
        end-00003.json  how the task of shard 3 ended, written by the task itself

The folder is claimed by making it: of two that submit at once, one gets the number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from slime_stages.errors import DataError
from slime_stages.run.commit import fsync_path, replace_file
from slime_stages.run.digest import sealed, unsealed
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall

CHAIN_STAGE = "chain"
"""The job that only extends the chain; it has no shard and no output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One submission: a job, or a job array, for some shards of one stage of one iteration (or evaluation)."""

    folder: Path
    number: int
    """Counts the submissions for this stage of this iteration, from 0."""
    stage: str
    iteration: int
    split: str = "train"
    shards: tuple[int | None, ...] = (None,)
    """Task t does `shards[t]`; None for stages that have no shards."""
    job_id: str | None = None
    """As sbatch told it; None: claimed, and not submitted (yet)."""
    is_array: bool = False
    until: int | None = None
    """Of rollouts that stream: one past the last iteration that they go on to."""
    dependencies: tuple[str, ...] = ()
    """Ids of the jobs that had to end before this could begin (`afterany`)."""
    submitted: float | None = None
    """Unix time."""
    excluded_nodes: tuple[str, ...] = ()
    claimed_by: str = ""
    """`host:pid`, or `job:ID` within a job."""
    claimed: float = 0.0
    """Unix time."""

    @property
    def title(self) -> str:
        """For people: `rollout 12 [0-3]`, `train 12`."""
        shards = shard_ranges(self.shards)
        what = f"{self.stage} {self.iteration}" + ("" if self.split == "train" else f" {self.split}")
        return f"{what} [{shards}]" if shards else what

    def task_id(self, shard: int | None) -> str | None:
        """SLURM's id of the shard's task: `123`, or `123_4` in an array; None before submission."""
        if self.job_id is None:
            return None
        return f"{self.job_id}_{self.shards.index(shard)}" if self.is_array else self.job_id

    def call(self, run: RunDir, shard: int | None) -> StageCall:
        return StageCall(
            stage=self.stage, run=run.root, iteration=self.iteration, shard=shard, split=self.split, until=self.until
        )

    def end_path(self, shard: int | None) -> Path:
        return self.folder / ("end.json" if shard is None else f"end-{shard:05d}.json")

    def log_paths(self, shard: int | None) -> tuple[Path, Path]:
        """(stdout, stderr) of the shard's task; of several processes, the first one's."""
        name = f"{self.task_id(shard)}_0_log"
        return self.folder / f"{name}.out", self.folder / f"{name}.err"

    def save(self) -> None:
        values = {key: value for key, value in asdict(self).items() if key != "folder"}
        replace_file(self.folder / "job.json", orjson.dumps(sealed(values), option=orjson.OPT_INDENT_2))

    def with_job(self, job_id: str, *, is_array: bool) -> Attempt:
        """The attempt once sbatch has answered; saved."""
        attempt = replace(self, job_id=job_id, is_array=is_array, submitted=time.time())
        attempt.save()
        return attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """How a task ended, as it told itself; a task that was killed tells nothing."""

    exit_code: int
    message: str = ""
    hint: str | None = None
    node: str = ""
    restarts: int = 0
    """How often SLURM had put the job back into the queue before."""
    job_id: str = ""
    finished: float = 0.0
    """Unix time."""
    progress: int = 0
    """Groups in the journal, or optimizer steps saved, at the end: whether an attempt got further than the last."""
    extra: dict[str, Any] = field(default_factory=dict)


def shard_ranges(shards: Iterable[int | None]) -> str:
    """`0-3`, `0,2,5-7`; empty for a stage without shards."""
    ranges: list[list[int]] = []
    for number in sorted(shard for shard in shards if shard is not None):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def stage_folder(run: RunDir, stage: str, iteration: int, split: str = "train") -> Path:
    """Folder of all submissions for one stage of an iteration."""
    name = f"{iteration:06d}-{stage}" if split == "train" else f"{iteration:06d}-eval-{split}-{stage}"
    return run.jobs_path / name


def claim_attempt(
    run: RunDir,
    stage: str,
    iteration: int,
    *,
    split: str = "train",
    shards: Sequence[int | None] = (None,),
    after: int,
    until: int | None = None,
) -> Attempt | None:
    """Claim the next submission, which must be number `after`; None if another process has it already."""
    folder = stage_folder(run, stage, iteration, split) / f"attempt-{after:03d}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return None
    fsync_path(folder.parent)
    job = os.environ.get("SLURM_JOB_ID")
    attempt = Attempt(
        folder=folder,
        number=after,
        stage=stage,
        iteration=iteration,
        split=split,
        shards=tuple(shards),
        until=until,
        claimed_by=f"job:{job}" if job else f"{os.uname().nodename}:{os.getpid()}",
        claimed=time.time(),
    )
    attempt.save()
    return attempt


def attempts_of(run: RunDir, stage: str, iteration: int, split: str = "train") -> list[Attempt]:
    """All submissions for one stage of an iteration, in order."""
    folder = stage_folder(run, stage, iteration, split)
    return list(_read_attempts(folder)) if folder.is_dir() else []


def streams_over(run: RunDir, iteration: int, shards: Iterable[int | None]) -> list[Attempt]:
    """Submissions for rollouts of earlier iterations that were to go on to this one, oldest first: of each shard the
    newest at least."""
    missing, found = set(shards), list[Attempt]()
    for earlier in range(iteration - 1, -1, -1):
        if not missing:
            break
        newer = [each for each in attempts_of(run, "rollout", earlier) if (each.until or 0) > iteration]
        missing -= {shard for each in newer for shard in each.shards}
        found = [*newer, *found]
    return found


def all_attempts(run: RunDir) -> Iterator[Attempt]:
    """Every submission of the run."""
    base = run.jobs_path
    for folder in sorted(base.iterdir()) if base.is_dir() else ():
        if folder.is_dir():
            yield from _read_attempts(folder)


def read_attempt(folder: Path) -> Attempt:
    """The submission in a folder. DataError if its record is not whole."""
    path = folder / "job.json"
    try:
        values = unsealed(orjson.loads(path.read_bytes()), path)
        lists = {key: tuple(values[key]) for key in ("shards", "dependencies", "excluded_nodes")}
        return Attempt(**{**values, **lists, "folder": folder})
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise DataError(f"{path} is no job's record: {error}") from error


def read_end(attempt: Attempt, shard: int | None) -> TaskEnd | None:
    """What the task told at its end; None if it told nothing."""
    try:
        return TaskEnd(**orjson.loads(attempt.end_path(shard).read_bytes()))
    except (FileNotFoundError, orjson.JSONDecodeError, TypeError):
        return None


def write_end(attempt: Attempt, shard: int | None, end: TaskEnd) -> None:
    replace_file(attempt.end_path(shard), orjson.dumps(asdict(end), option=orjson.OPT_INDENT_2))


def _read_attempts(folder: Path) -> Iterator[Attempt]:
    for path in sorted(folder.glob("attempt-*")):
        with suppress(FileNotFoundError):  # claimed this instant: its record comes
            yield read_attempt(path)

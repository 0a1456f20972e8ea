"""Which file has what a person wants to read: the log of what failed last, of what runs now, or of what is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_stages.errors import MissingInputError, UsageError
from slime_stages.launch.job_facts import GOING_ON, ask_scheduler
from slime_stages.launch.overview import TaskFact
from slime_stages.launch.run_overview import run_overview
from slime_stages.run.rundir import RunDir, program_of
from slime_stages.slurm.jobs import CHAIN_STAGE, Attempt, all_attempts, read_attempt, read_end
from slime_stages.stage import StageCall

ENGINE = "engine"
STAGES = ("rollout", "reward", "train", "sync", CHAIN_STAGE, "serve", ENGINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a command line asks for; None: any."""

    stage: str | None = None
    iteration: int | None = None
    shard: int | None = None
    split: str | None = None
    """None: training, or any evaluation set if nothing else is asked for."""
    attempt: int | None = None

    def __post_init__(self) -> None:
        if self.stage is not None and program_of(self.stage) not in STAGES:
            raise UsageError(f"there is no stage {self.stage}", hint=f"one of {', '.join(STAGES)}")

    @property
    def is_any(self) -> bool:
        return self == Wanted()

    def has(self, stage: str, iteration: int, split: str) -> bool:
        return (
            self.stage in (None, stage)
            and self.iteration in (None, iteration)
            and (self.is_any or split == (self.split or "train"))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One task's log, or that of an engine."""

    path: Path
    """Its stderr; of an engine, all it says."""
    title: str
    """What it is the log of: `rollout 5/3, attempt 1, job 123_3`."""
    about: str = ""
    """A clause on how it stands."""
    stdout: Path | None = None
    attempt: Attempt | None = None
    shard: int | None = None


def find_log(run: RunDir, wanted: Wanted) -> Log:
    """MissingInputError if nothing has left such a log."""
    if wanted.stage != ENGINE and run.jobs_path.is_dir() and (log := _job_log(run, wanted)) is not None:
        return log
    if wanted.stage in (None, ENGINE) and (log := _engine_log(run, wanted)) is not None:
        return log
    what = wanted.stage or ("any stage" if wanted.iteration is None else f"iteration {wanted.iteration}")
    raise MissingInputError(
        f"there is no log of {what} in {run.jobs_path} or {run.log_path('*').parent}",
        hint="stages that run without a job print to their terminal; "
        f"slime-stages status --run {run.root}   says what was done",
    )


def is_over(run: RunDir, log: Log) -> bool:
    """Whether nothing is going to be added to a task's log; one question to the scheduler."""
    if log.attempt is None or (task := log.attempt.task_id(log.shard)) is None:
        return False
    queue, jobs = ask_scheduler(run, [log.attempt])
    if queue is None:
        return jobs.silence is not None and read_end(log.attempt, log.shard) is not None
    info = queue.get(task)
    return info is None or not info.is_live


def _job_log(run: RunDir, wanted: Wanted) -> Log | None:
    if wanted.attempt is None and (fact := _fact(run, wanted)) is not None:
        return _log_of(read_attempt(Path(fact.log).parent), fact.shard, f"{fact.activity}: {fact.reason}")
    found = [
        attempt
        for attempt in all_attempts(run)
        if wanted.has(attempt.stage, attempt.iteration, attempt.split)
        and wanted.attempt in (None, attempt.number)
        and (wanted.shard is None or wanted.shard in attempt.shards)
        and attempt.job_id is not None
    ]
    if not found:
        return None
    newest = max(found, key=lambda attempt: (attempt.submitted or attempt.claimed, attempt.number))
    shard = wanted.shard if wanted.shard is not None else _worst_shard(newest)
    end = read_end(newest, shard)
    return _log_of(newest, shard, "" if end is None else f"ended with exit code {end.exit_code}")


def _fact(run: RunDir, wanted: Wanted) -> TaskFact | None:
    """The task that failed last, else the one that started last, of those that have begun."""
    tasks = [
        task
        for task in run_overview(run).tasks
        if task.activity in GOING_ON
        and wanted.has(task.stage, task.iteration, task.split)
        and wanted.shard in (None, task.shard)
        and any(path.exists() for path in _paths(task))
    ]
    for activity in ("failed", "running", "submitted", "queued"):
        if alike := [task for task in tasks if task.activity == activity]:
            return max(alike, key=lambda task: task.since or 0.0)
    return None


def _paths(task: TaskFact) -> Sequence[Path]:
    path = Path(task.log)
    return (path, path.with_suffix(".out"))


def _worst_shard(attempt: Attempt) -> int | None:
    """A shard whose task has failed, else one that has told nothing, else the first."""
    ends = {shard: read_end(attempt, shard) for shard in attempt.shards}
    failed = [shard for shard, end in ends.items() if end is not None and end.exit_code]
    silent = [shard for shard, end in ends.items() if end is None]
    return [*failed, *silent, *attempt.shards][0]


def _log_of(attempt: Attempt, shard: int | None, about: str) -> Log:
    stdout, stderr = attempt.log_paths(shard)
    call = StageCall(stage=attempt.stage, run=Path(), iteration=attempt.iteration, shard=shard, split=attempt.split)
    title = f"{call.title}, attempt {attempt.number}, job {attempt.task_id(shard)}"
    return Log(path=stderr, stdout=stdout, title=title, about=about, attempt=attempt, shard=shard)


def _engine_log(run: RunDir, wanted: Wanted) -> Log | None:
    """The newest one, of the iteration and shard if these are asked for."""
    iteration = "*" if wanted.iteration is None else f"{wanted.iteration:06d}-*"
    pattern = iteration if wanted.shard is None else f"{iteration.removesuffix('*')}*{wanted.shard:05d}"
    folder = run.log_path("any").parent
    found = sorted(folder.glob(f"{ENGINE}-{pattern}.log"), key=lambda path: path.stat().st_mtime)
    return Log(path=found[-1], title=f"engine {found[-1].stem.removeprefix('engine-')}") if found else None

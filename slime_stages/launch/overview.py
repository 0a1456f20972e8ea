"""What a person asks of an iteration: what is committed, stale, missing or corrupt, how it went, what jobs do about it.

Records only: `iteration_overview.py` reads them from manifests, `job_facts.py` adds what jobs do, `run_overview.py` is
about a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slime_stages.run.rundir import RunDir

STAGES = ("rollout", "reward", "train", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOutput:
    """An output that is not committed and fresh."""

    shard: int | None
    """None for train and sync."""
    state: str
    """corrupt, stale or missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFact:
    """What has become of the last job that was to make an output which is not there."""

    title: str
    """As in `reward 5/3`."""
    stage: str
    iteration: int
    split: str
    shard: int | None
    activity: str
    """failed, running, queued or submitted (the scheduler, which is silent, knows more); else the output's state."""
    reason: str
    """A clause for people: why it failed, or waits."""
    advice: str | None
    """The next command or edit, where there is one."""
    attempt: int
    job: str | None
    """SLURM's id of the task."""
    log: str
    """Its stderr."""
    since: float | None
    """Unix time: of its end, its start or its submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOverview:
    """One stage of an iteration, all its shards together."""

    state: str
    """Of its worst shard: corrupt, stale, missing or committed."""
    shards: int
    """Outputs it has; train and sync have one."""
    counts: dict[str, int]
    """Shards by state."""
    seconds: float | None
    """Wall clock of all its shards, added up; None if none is there."""
    run_seconds: float | None = None
    """Wall clock of the shard that took longest."""
    queue_seconds: float | None = None
    """Longest wait of a job for its start, once it was submitted and its inputs were there; None without jobs."""
    open_outputs: tuple[OpenOutput, ...] = ()
    activity: dict[str, int] = field(default_factory=dict)
    """Outputs by what goes on: failed, running, queued or submitted; the others by their state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An output that is there and cannot be used as it is."""

    title: str
    """As in `reward 5/3`."""
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationOverview:
    """An iteration, or an evaluation of a version of the weights. Figures are of the outputs that are there."""

    iteration: int
    """Of an evaluation: the version of the weights."""
    split: str
    stages: dict[str, StageOverview]
    """By name; none where the plan cannot be read."""
    samples: int
    tokens: int
    reward: float | None
    """Mean over the samples that have one."""
    truncated: float | None
    """Share of samples that ran into a length limit."""
    probs_diff: float | None
    """Mean |p train - p rollout| over trained tokens, both with the weights that generated them."""
    problems: tuple[Problem, ...]
    next_command: str | None
    """What makes its first missing, stale or corrupt output; None if it is complete."""
    run_seconds: float | None = None
    """Of its stages one after the other, by the longest shard of each."""
    queue_seconds: float | None = None
    """Of its stages one after the other; None without jobs."""
    tasks: tuple[TaskFact, ...] = ()
    """Jobs that are to make what is not there, or have failed to."""

    @property
    def is_complete(self) -> bool:
        return bool(self.stages) and self.next_command is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJobs:
    """All jobs of a run that are in the queue."""

    running: int = 0
    """Tasks."""
    queued: dict[str, int] = field(default_factory=dict)
    """Tasks by the scheduler's reason."""
    silence: str | None = None
    """Why the scheduler does not say; None if it did, or was not asked."""

    @property
    def count(self) -> int:
        return self.running + sum(self.queued.values())


def evaluation_names(run: RunDir, version: int) -> list[str]:
    """The sets that a version of the weights was, or is to be, evaluated on."""
    folder = run.iteration_path(version) / "eval"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

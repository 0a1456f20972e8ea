"""What iterations on SLURM would be, before anything is written or submitted: jobs, scripts, hours and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from slime_stages.errors import SlimeStagesError
from slime_stages.launch.chain_state import Chain, chain_header
from slime_stages.launch.disk_need import DiskNeed, disk_need
from slime_stages.launch.job_graph import JobKey, PlannedJob, job_graph
from slime_stages.launch.start_run import current_revision
from slime_stages.launch.states import CallState, iteration_states
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.header import Header
from slime_stages.slurm.jobs import Attempt, attempts_of, stage_folder
from slime_stages.slurm.names import split_shards
from slime_stages.slurm.resources import Resources, resources_of
from slime_stages.slurm.script import script_text
from slime_stages.slurm.submission import Submission
from slime_stages.stage import read_config, read_run_plan

STAGES = ("rollout", "reward", "train", "sync")
PAST = 5
"""Newest whole iterations by which time and bytes are estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPreview:
    """A job, or a job array, that would be submitted."""

    job: PlannedJob
    """With those shards only that are not there yet."""
    resources: Resources
    """Of one task."""
    task_seconds: float | None
    """Mean wall clock of such a task in recent iterations; None if there were none."""

    @property
    def tasks(self) -> int:
        return len(self.job.shards)

    @property
    def most_gpu_hours(self) -> float | None:
        """If every task ran into its time limit, once. None: the header does not say enough."""
        return _times(self.tasks, self.resources.gpu_hours)

    @property
    def most_cpu_hours(self) -> float | None:
        return _times(self.tasks, self.resources.cpu_hours)

    @property
    def gpu_hours(self) -> float | None:
        """By recent iterations; None if there were none."""
        return _times(self.resources.gpus, _times(self.tasks, self._task_hours))

    @property
    def cpu_hours(self) -> float | None:
        return _times(self.resources.cpus, _times(self.tasks, self._task_hours))

    @property
    def _task_hours(self) -> float | None:
        return None if self.task_seconds is None else self.task_seconds / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The iterations asked for."""

    run: str
    iterations: range
    jobs: tuple[JobPreview, ...]
    iteration_seconds: float | None
    """Of one iteration whose jobs never wait, by recent ones."""
    disk: DiskNeed
    stale: tuple[str, ...] = ()
    """What was made from other inputs than it would be now, as in `rollout 3/1 is stale: weights changed since`."""

    def total(self, name: str) -> tuple[float, bool]:
        """Sum of a figure over all jobs, and whether every job has it."""
        values = [getattr(job, name) for job in self.jobs]
        return sum(value or 0.0 for value in values), None not in values


def preview(run: RunDir, iterations: range, chain: Chain) -> Preview:
    """UsageError, with file and line, for a header that cannot be used."""
    config = read_config(run, current_revision(run))
    past = list(past_manifests(run))
    jobs = list(missing_jobs(run, job_graph(run, iterations), accept_stale=chain.accept_stale))
    headers = {stage: chain_header(chain, stage) for stage in dict.fromkeys(job.stage for job in jobs)}
    seconds = {key: mean_seconds(run, *key) for key in dict.fromkeys((job.stage, job.split) for job in jobs)}
    each = [mean_seconds(run, stage) for stage in STAGES]
    return Preview(
        run=str(run.root),
        iterations=iterations,
        jobs=tuple(
            JobPreview(job=job, resources=resources_of(headers[job.stage]), task_seconds=seconds[job.stage, job.split])
            for job in jobs
        ),
        iteration_seconds=None if None in each else sum(value or 0.0 for value in each),
        disk=disk_need(run, config, len(iterations), past),
        stale=() if chain.accept_stale else tuple(stale_outputs(run, iterations)),
    )


def missing_jobs(run: RunDir, jobs: Sequence[PlannedJob], *, accept_stale: bool = False) -> Iterator[PlannedJob]:
    """The jobs without the shards that are there; those without any left are not needed."""
    usable = ("fresh", "stale") if accept_stale else ("fresh",)
    states = {place: states_at(run, *place) for place in dict.fromkeys((job.iteration, job.split) for job in jobs)}
    for job in jobs:
        done = {
            item.call.shard
            for item in states[job.iteration, job.split]
            if item.call.stage == job.stage and item.state.kind in usable
        }
        if shards := tuple(shard for shard in job.shards if shard not in done):
            yield replace(job, shards=shards)


def stale_outputs(run: RunDir, iterations: range) -> Iterator[str]:
    for iteration in iterations:
        for item in states_at(run, iteration):
            if item.state.kind == "stale":
                yield f"{item.call.title} is {item.state.reason}"


def states_at(run: RunDir, iteration: int, split: str = "train") -> list[CallState]:
    """Of the outputs of an iteration, or of an evaluation; none before there is a plan."""
    try:
        return iteration_states(run, read_run_plan(run, iteration, split))
    except SlimeStagesError:
        return []


def scripts(
    run: RunDir, jobs: Sequence[PlannedJob], chain: Chain, *, max_array_size: int
) -> Iterator[tuple[PlannedJob, str]]:
    """The exact script of every job, but for the ids of the jobs it waits for, which sbatch is yet to give.

    An array of more tasks than the cluster takes is several jobs.
    """
    headers: dict[str, Header] = {}
    for job in jobs:
        header = headers.setdefault(job.stage, chain_header(chain, job.stage))
        number = len(attempts_of(run, job.stage, job.iteration, job.split))
        for position, shards in enumerate(split_shards(job.shards, max_array_size)):
            attempt = Attempt(
                folder=stage_folder(run, *job.key) / f"attempt-{number + position:03d}",
                number=number + position,
                stage=job.stage,
                iteration=job.iteration,
                split=job.split,
                shards=shards,
            )
            submission = Submission(
                run=run,
                attempt=attempt,
                header=header,
                dependencies=[placeholder(key) for key in job.depends_on],
                array_parallelism=chain.array_parallelism,
            )
            yield job, script_text(submission)


def placeholder(key: JobKey) -> str:
    """In place of a job's id: `ID-OF-SYNC-4`."""
    words = ["ID-OF", key.stage, str(key.iteration), *([key.split] if key.split != "train" else [])]
    return "-".join(words).upper()


def past_manifests(run: RunDir) -> Iterator[list[Manifest]]:
    """The manifests of each of the newest iterations that are whole, as far as they can be read."""
    found = 0
    for iteration in reversed(run.iterations()):
        if found == PAST:
            return
        manifests = [manifest for stage in STAGES for manifest in _manifests(run, stage, iteration)]
        if {manifest.kind for manifest in manifests} == set(STAGES):
            found += 1
            yield manifests


def mean_seconds(run: RunDir, stage: str, split: str = "train") -> float | None:
    """Wall clock of a task of the stage, in the newest iterations or evaluations that have any."""
    per_iteration = (_manifests(run, stage, iteration, split) for iteration in reversed(run.iterations()))
    newest = islice((manifests for manifests in map(list, per_iteration) if manifests), PAST)
    spans = [
        (datetime.fromisoformat(manifest.finished) - datetime.fromisoformat(manifest.started)).total_seconds()
        for manifests in newest
        for manifest in manifests
        if manifest.started and manifest.finished
    ]
    return sum(spans) / len(spans) if spans else None


def _manifests(run: RunDir, stage: str, iteration: int, split: str = "train") -> Iterator[Manifest]:
    for path in sorted(run.stage_path(stage, iteration, split).glob("*.json")):
        with suppress(SlimeStagesError):
            yield read_manifest(path)


def _times(count: int | None, value: float | None) -> float | None:
    if 0 in (count, value):
        return 0.0
    return None if count is None or value is None else count * value

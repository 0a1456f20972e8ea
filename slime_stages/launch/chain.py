"""The chain of jobs that makes a run's iterations on SLURM: `advance` submits what is missing, and nobody need watch.

Who calls it finds everything out anew, so that anybody may, at any time: `iter`, every train and sync job at its end,
the job behind the last one. A submission is claimed on disk first; of two callers at once, one makes it. Where jobs may
not submit, a driver calls it again and again, and they leave it to that one.

    what is committed and fresh                  nothing
    what a job in the queue will make            nothing, but that job waits for its inputs' newest jobs
    what no job has tried                        is submitted
    what a job has tried in vain                 as `slurm/verdicts.py` says: again, or the chain stops
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slime_stages.errors import RetryableError, SlimeStagesError, UsageError
from slime_stages.launch.chain_jobs import wanted_jobs
from slime_stages.launch.chain_state import (
    Chain,
    chain_begun_now,
    chain_header,
    read_chain,
    stop_chain,
    write_chain,
)
from slime_stages.launch.iterate import retain
from slime_stages.launch.job_graph import JobKey, PlannedJob
from slime_stages.launch.states import first_incomplete
from slime_stages.launch.survey import Survey, Unit, is_streamed, survey
from slime_stages.lineage import command
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import CHAIN_STAGE, Attempt, attempts_of, claim_attempt
from slime_stages.slurm.queue import query, scheduler_limits
from slime_stages.slurm.submission import Submission
from slime_stages.slurm.submit import cancel_jobs, job_name, set_dependency, split_shards, submit_attempt
from slime_stages.slurm.verdicts import Action, Verdict, judge
from slime_stages.stage import say


@dataclass(slots=True, kw_only=True)
class Advance:
    """What a call did."""

    submitted: list[Attempt] = field(default_factory=list)
    complete: bool = False
    """Every iteration that was asked for is there."""
    stopped: str | None = None
    advice: str | None = None
    is_taken: bool = False
    """Another process was submitting at this moment, so this one left off."""


def begin_chain(run: RunDir, chain: Chain) -> Advance:
    """Have the run's iterations made up to the chain's target. UsageError if jobs of another chain are at it."""
    keeping = {attempt.job_id for attempt in attempts_of(run, "serve", 0)}
    live = [info for info in query(job_name(run), (), since=0.0).live() if info.is_live]
    busy = [info for info in live if info.job_id.partition("_")[0] not in keeping]
    known = read_chain(run)
    if busy and known is not None and known.stopped is None:
        raise UsageError(
            f"{run.root} has a chain up to iteration {known.target - 1} already, with {len(busy)} jobs in the queue",
            hint=f"slime-stages status --run {run.root} --watch   (or `slime-stages cancel --run {run.root}`)",
        )
    write_chain(run, chain_begun_now(chain))
    return advance(run)


def advance(run: RunDir, *, by_job: bool = False, ended: str | None = None) -> Advance:
    """Submit what the chain needs next. `by_job`: a job of the chain asks; `ended` is its task, at its end.

    A submission that is refused stops the chain and is raised; a scheduler that is away is a RetryableError.
    """
    chain = read_chain(run)
    if chain is None or chain.stopped is not None:
        return Advance(stopped=chain.stopped if chain else None, advice=chain.advice if chain else None)
    if chain.is_driven and by_job:
        return Advance()
    done = first_incomplete(run)
    for iteration in range(max(0, done - 2), done):
        retain(run, iteration)
    window = range(done, max(done, min(chain.target, done + chain.lookahead)))
    jobs = wanted_jobs(run, chain, window)
    found = survey(run, jobs, chain, ended=ended)
    streams = any(is_streamed(run, job.key) for job in jobs)
    step = _Step(run=run, chain=chain, found=found, streams=streams)
    try:
        for job in jobs:
            step.handle(job)
    except _Taken:
        step.result.is_taken = True
        return step.result
    except _Stop as stop:
        return _stopped(run, stop.reason, stop.advice)
    except RetryableError:
        raise
    except SlimeStagesError as error:
        _stopped(run, error.message, error.hint, begun=step.result.submitted)
        raise
    step.result.complete = not window and not any(found.live_jobs(job.key) for job in jobs)
    if jobs and not step.result.complete and not chain.is_driven:
        step.keep_watch(jobs)
    return step.result


class _Stop(Exception):
    """The chain is not to go on."""

    def __init__(self, reason: str, advice: str | None) -> None:
        self.reason, self.advice = reason, advice


class _Taken(Exception):
    """Another process is at it."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """One pass over the jobs that are needed, in the order of their dependencies."""

    run: RunDir
    chain: Chain
    found: Survey
    result: Advance = field(default_factory=Advance)
    streams: bool
    """Rollouts go on from one iteration to the next."""
    newest: dict[JobKey, list[str]] = field(default_factory=dict)
    """Ids of jobs submitted in this pass."""

    def handle(self, job: PlannedJob) -> None:
        if self._is_early(job):
            return
        wanted, excluded = [], set()
        for unit in self.found.units[job.key]:
            if (unit.is_wanted or self._is_stuck(unit)) and self._is_needed(job, unit):
                verdict = self._judged(unit)
                if verdict is None or verdict.action is not Action.WAIT:
                    excluded |= set(verdict.exclude if verdict else ())
                    wanted.append(unit.shard)
        if wanted:
            self._submit(job, wanted, sorted(excluded))
        for attempt in self.found.pending(job.key):
            if attempt.iteration == job.iteration and set(self._before(job)) - set(attempt.dependencies):
                self._wait_for(attempt, self._before(job))

    def keep_watch(self, jobs: Sequence[PlannedJob]) -> None:
        """Have a job behind all others, that looks again should the ones that carry the chain on die."""
        last = next((job for job in reversed(jobs) if self._ids(job.key)), jobs[-1])
        key = JobKey(CHAIN_STAGE, last.iteration)
        after = self._ids(last.key)
        attempts = self.found.attempts.setdefault(key, attempts_of(self.run, CHAIN_STAGE, last.iteration))
        queue = query(job_name(self.run), [a.job_id for a in attempts if a.job_id], since=self.chain.begun)
        waiting = [a for a in attempts if (info := queue.get(a.job_id or "")) and info.is_live and not info.started]
        if waiting:
            if set(after) - set(waiting[-1].dependencies):
                self._wait_for(waiting[-1], after)
        elif after:
            self._claimed_and_submitted(key, (None,), after, ())

    def _is_early(self, job: PlannedJob) -> bool:
        """Whether a stream has yet to make what the job reads: it calls again when that is committed, but its own job
        may go on for long."""
        missing = [key for key in job.depends_on if not self.found.is_whole(key)]
        return any(is_streamed(self.run, key) or (self.streams and not self._ids(key)) for key in missing)

    def _is_needed(self, job: PlannedJob, unit: Unit) -> bool:
        """What was made from other inputs than it would be now is made again if this chain altered those inputs.

        While an input is missing nobody knows: it may come out as it was.
        """
        if unit.state.kind != "stale":
            return True
        if not all(self.found.is_whole(key) for key in job.depends_on):
            return False
        if any(self._is_remade(key) for key in job.depends_on):
            return True
        if self.chain.accept_stale:
            return False
        raise _Stop(
            f"{unit.job.stage} {unit.job.iteration} is {unit.state.reason}",
            f"{command(self.run, job.stage, job.iteration, unit.shard)}   makes it again; or "
            f"slime-stages iter --run {self.run.root} --executor slurm --n 0 --accept-stale   goes on with it as it is",
        )

    def _is_stuck(self, unit: Unit) -> bool:
        """Whether its job is queued and will never start; that job is then cancelled."""
        stuck = [run for run in unit.queued if judge([run], max_retries=0).action is Action.RESUBMIT]
        ids = [task for run in stuck if (task := run.attempt.task_id(unit.shard))]
        if ids:
            cancel_jobs(ids)
        return bool(ids) and len(ids) == len(unit.live) and not unit.state.is_fresh

    def _is_remade(self, key: JobKey) -> bool:
        """Whether this chain made the output, so that it is not what it was when a person last looked."""
        return any((attempt.submitted or 0.0) >= self.chain.begun for attempt in self.found.attempts[key])

    def _judged(self, unit: Unit) -> Verdict | None:
        """What to do about an output that jobs have tried to make in vain; None if none has. Raises to end the chain.

        An evaluation that cannot be had is done without.
        """
        if not unit.history:
            return None
        verdict = judge(unit.history, max_retries=self.chain.max_retries)
        if verdict.action not in (Action.GIVE_UP, Action.STOP):
            return verdict
        reason = f"{unit.title}: {verdict.reason}"
        if unit.job.split == "train":
            raise _Stop(reason, verdict.advice)
        say(f"warning: {reason}; training goes on without it")
        return replace(verdict, action=Action.WAIT)

    def _submit(self, job: PlannedJob, shards: list[int | None], excluded: Sequence[str]) -> None:
        for part in split_shards(shards, scheduler_limits().max_array_size):
            self._claimed_and_submitted(job.key, part, self._before(job), excluded)

    def _claimed_and_submitted(
        self, key: JobKey, shards: Sequence[int | None], before: Sequence[str], excluded: Sequence[str]
    ) -> None:
        number = self.found.next_number(key)
        attempt = claim_attempt(
            self.run,
            key.stage,
            key.iteration,
            split=key.split,
            shards=shards,
            after=number,
            until=self.chain.target if is_streamed(self.run, key) else None,
        )
        if attempt is None:
            raise _Taken
        self.found.attempts.setdefault(key, []).append(attempt)
        attempt = submit_attempt(
            Submission(
                run=self.run,
                attempt=attempt,
                header=chain_header(self.chain, key.stage),
                dependencies=before,
                exclude=excluded,
                array_parallelism=self.chain.array_parallelism,
            )
        )
        self.result.submitted.append(attempt)
        if attempt.job_id:
            self.newest.setdefault(key, []).append(attempt.job_id)

    def _before(self, job: PlannedJob) -> list[str]:
        made = [key for key in job.depends_on if not is_streamed(self.run, key)]
        return sorted({id_ for key in made for id_ in self._ids(key)})

    def _ids(self, key: JobKey) -> list[str]:
        return sorted({*self.found.live_jobs(key), *self.newest.get(key, ())})

    def _wait_for(self, attempt: Attempt, jobs: Sequence[str]) -> None:
        """A job that began meanwhile finds its inputs missing, and is submitted again later."""
        if attempt.job_id and set_dependency(attempt.job_id, jobs):
            replace(attempt, dependencies=tuple(jobs)).save()


def _stopped(run: RunDir, reason: str, advice: str | None, *, begun: Sequence[Attempt] = ()) -> Advance:
    """Nothing more is submitted, and nothing starts that waits for what will not come; what runs may finish.

    `begun` was submitted a moment ago, together with what was refused: it is taken back, even if it runs.
    """
    stop_chain(run, reason, advice)
    say(f"the chain stops: {reason}" + (f"\nhint: {advice}" if advice else ""))
    waiting = [info.job_id for info in query(job_name(run), (), since=0.0).live() if info.state == "PENDING"]
    cancel_jobs({*waiting, *(attempt.job_id for attempt in begun if attempt.job_id)})
    return Advance(stopped=reason, advice=advice)

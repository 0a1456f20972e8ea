"""A scheduler in memory: takes submissions, keeps `afterany` order, and runs tasks as a test says they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from slime_stages.errors import SlimeStagesError
from slime_stages.launch import chain, evidence, survey
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan
from slime_stages.slurm import inside
from slime_stages.slurm.header import Header
from slime_stages.slurm.jobs import CHAIN_STAGE, Attempt, TaskEnd, write_end
from slime_stages.slurm.queue import JobInfo, Queue
from slime_stages.slurm.submission import Submission
from tests.slime_stages.cli.small_run import SmallRun

Outcome = Callable[[str, int, int | None, int], int | str]
"""(stage, iteration, shard, how many tries before) → 0, an exit code, or a state such as `NODE_FAIL`."""


@dataclass(slots=True)
class FakeScheduler:
    """Runs the chain's jobs on a `SmallRun`: a task that ends with 0 commits what its stage would."""

    small: SmallRun
    outcome: Outcome = lambda stage, iteration, shard, tries: 0
    attempts: list[Attempt] = field(default_factory=list)
    infos: dict[str, JobInfo] = field(default_factory=dict)
    excluded: dict[str, Sequence[str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """Titles of the tasks that ran, and how they ended where that was not well."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
        header = Header(path=self.small.run.root / "x.sbatch", stage="x", directives={})
        limits = SimpleNamespace(max_array_size=1001)
        for module in (chain, survey):
            monkeypatch.setattr(module, "query", self.query)
            monkeypatch.setattr(module, "job_name", lambda run: "run")
        for module in (chain, evidence):
            monkeypatch.setattr(module, "chain_header", lambda chain_, stage: header)
        monkeypatch.setattr(chain, "submit_attempt", self.submit)
        monkeypatch.setattr(chain, "set_dependency", self.set_dependency)
        monkeypatch.setattr(chain, "cancel_jobs", self.cancel)
        monkeypatch.setattr(chain, "scheduler_limits", lambda: limits)
        return self

    def submit(self, submission: Submission) -> Attempt:
        job_id, exclude = str(100 + len(self.attempts)), submission.exclude
        attempt = replace(
            submission.attempt, dependencies=tuple(submission.dependencies), excluded_nodes=tuple(exclude)
        )
        attempt = attempt.with_job(job_id, is_array=len(attempt.shards) > 1)
        self.attempts.append(attempt)
        self.excluded[job_id] = exclude
        for shard in attempt.shards:
            task = attempt.task_id(shard)
            assert task is not None
            self.infos[task] = info(task, "PENDING")
        return attempt

    def query(self, name: str, job_ids: Collection[str], *, since: float) -> Queue:
        return Queue(dict(self.infos))

    def set_dependency(self, job_id: str, dependencies: Sequence[str]) -> bool:
        number = next(n for n, attempt in enumerate(self.attempts) if attempt.job_id == job_id)
        self.attempts[number] = replace(self.attempts[number], dependencies=tuple(dependencies))
        return True

    def cancel(self, job_ids: Collection[str]) -> None:
        for task, known in self.infos.items():
            if known.is_live and (task in job_ids or task.partition("_")[0] in job_ids):
                self.infos[task] = info(task, "CANCELLED")

    def run_all(self, most: int = 200) -> None:
        """Run whatever can run until nothing can; the jobs that extend the chain do."""
        for _ in range(most):
            ready = [
                (a, shard) for a in self.attempts if self._may_run(a) for shard in a.shards if self._waits(a, shard)
            ]
            if not ready:
                assert not [i for i in self.infos.values() if i.is_live], "jobs wait for ever"
                return
            self._run(*ready[0])
        raise AssertionError(f"still busy after {most} tasks: {self.order[-20:]}")

    def titles(self, words: str) -> list[str]:
        """Of the tasks that ran, those that begin so."""
        return [title for title in self.order if title.startswith(words)]

    def _may_run(self, attempt: Attempt) -> bool:
        ended = [i for task, i in self.infos.items() if task.partition("_")[0] in attempt.dependencies]
        return all(not i.is_live for i in ended)

    def _waits(self, attempt: Attempt, shard: int | None) -> bool:
        return self.infos[attempt.task_id(shard) or ""].state == "PENDING"

    def _run(self, attempt: Attempt, shard: int | None) -> None:
        task = attempt.task_id(shard)
        assert task is not None
        self.infos[task] = info(task, "RUNNING")
        if (attempt.stage, attempt.shards[0]) == ("rollout", shard):
            chain.advance(self.small.run, by_job=True)
        title = f"{attempt.stage} {attempt.iteration}" + ("" if shard is None else f"/{shard}")
        tries = sum(each.startswith(title + ":") or each == title for each in self.order)
        result = 0 if attempt.stage == CHAIN_STAGE else self.outcome(attempt.stage, attempt.iteration, shard, tries)
        if isinstance(result, str):
            self.order.append(f"{title}: {result}")
            self.infos[task] = info(task, result)
            return
        end = TaskEnd(exit_code=result, message=f"exit {result}", job_id=task, finished=time.time())
        if result == 0 and attempt.stage != CHAIN_STAGE:
            end = self._committed(attempt, shard, end)
        self.order.append(title if end.exit_code == 0 else f"{title}: {end.exit_code}")
        write_end(attempt, shard, end)
        if inside.needs_a_look(attempt, self.small.run, end):
            chain.advance(self.small.run, by_job=True, ended=task)
        self.infos[task] = info(task, "FAILED" if end.exit_code else "COMPLETED", end.exit_code)

    def _committed(self, attempt: Attempt, shard: int | None, end: TaskEnd) -> TaskEnd:
        run, small = self.small.run, self.small
        number, split = attempt.iteration, attempt.split
        plan = ensure_plan(run, number) if split == "train" else ensure_eval_plan(run, number, split)
        try:
            if attempt.stage in ("rollout", "reward"):
                getattr(small, attempt.stage)(plan, shard)
            else:
                getattr(small, attempt.stage)(plan)
        except SlimeStagesError as error:
            return replace(end, exit_code=error.exit_code, message=error.message)
        return end


def info(task: str, state: str, exit_code: int = 0) -> JobInfo:
    return JobInfo(
        job_id=task,
        state=state,
        reason="",
        exit_code=exit_code,
        signal=0,
        nodes="node1",
        submitted=None,
        started=None,
        ended=None,
        restarts=0,
        failed_nodes=(),
    )

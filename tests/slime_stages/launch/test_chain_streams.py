"""The chain where a rollout's job goes on from one iteration to the next, against a scheduler in memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slime_stages.launch import chain
from slime_stages.launch.chain import advance, begin_chain
from slime_stages.launch.chain_state import Chain, read_chain
from slime_stages.launch.job_graph import JobKey, job_graph
from slime_stages.launch.states import first_incomplete
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import Attempt, TaskEnd, streams_over, write_end
from tests.fakes.scheduler import FakeScheduler, info
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved

ITERATIONS = 4


@dataclass(slots=True)
class StreamScheduler(FakeScheduler):
    """Its rollout tasks go on as long as there are weights for the next iteration, and look at the chain in between."""

    dies_at: set[tuple[int, int]] = field(default_factory=set)
    """(iteration, shard) before which a stream loses its node, once."""

    def _waits(self, attempt: Attempt, shard: int | None) -> bool:
        state = self.infos[attempt.task_id(shard) or ""].state
        return state == "PENDING" or (state == "RUNNING" and self._next(attempt, shard) is not None)

    def _next(self, attempt: Attempt, shard: int | None) -> int | None:
        """The next iteration of a stream, if its weights are there."""
        for iteration in range(attempt.iteration, attempt.until or 0):
            plan = self.small.plan(iteration)
            if not shard_manifest_path(self.small.run, plan, "rollout", shard).exists():
                version = plan.policy_version
                is_out = not version or self.small.run.manifest_path("sync", version - 1).exists()
                return iteration if is_out else None
        return None

    def _run(self, attempt: Attempt, shard: int | None) -> None:
        if attempt.until is None:
            FakeScheduler._run(self, attempt, shard)
            return
        task, run = attempt.task_id(shard) or "", self.small.run
        self.infos[task] = info(task, "RUNNING")
        if (iteration := self._next(attempt, shard)) is None:
            return
        if (iteration, shard) in self.dies_at:
            self.dies_at.remove((iteration, shard or 0))
            self.order.append(f"rollout {iteration}/{shard}: NODE_FAIL")
            self.infos[task] = info(task, "NODE_FAIL")
            return
        self.small.rollout(self.small.plan(iteration), shard or 0)
        self.order.append(f"rollout {iteration}/{shard}")
        if iteration + 1 == attempt.until:
            write_end(attempt, shard, TaskEnd(exit_code=0, job_id=task, finished=time.time()))
            chain.advance(run, by_job=True, ended=task)
            self.infos[task] = info(task, "COMPLETED")
        else:
            chain.advance(run, by_job=True)


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamScheduler:
    config = resolved(
        rollout_batch_size=4,
        n_samples_per_prompt=2,
        rollout_shards=2,
        rollout_streaming=True,
        staleness=1,
        use_tis=True,
    ).config
    small = SmallRun(run=RunDir(tmp_path / "run"), config=config).start(make_model_folder(tmp_path / "model"))
    for iteration in range(ITERATIONS):
        small.plan(iteration)
    made = StreamScheduler(small)
    made.install(monkeypatch)
    return made


def wanted() -> Chain:
    return Chain(target=ITERATIONS, sbatch_folder="/nowhere")


def test_one_job_makes_the_rollouts_of_all_iterations_and_has_each_scored_and_trained(
    scheduler: StreamScheduler,
) -> None:
    run = scheduler.small.run
    begin_chain(run, wanted())
    assert [(a.stage, a.iteration, a.until) for a in scheduler.attempts] == [
        ("rollout", 0, ITERATIONS),
        ("chain", 0, None),
    ]

    scheduler.run_all()

    assert first_incomplete(run) == ITERATIONS
    assert [attempt.iteration for attempt in scheduler.attempts if attempt.stage == "rollout"] == [0]
    for stage, shards in (("reward", ("/0", "/1")), ("train", ("",)), ("sync", ("",))):
        assert scheduler.titles(stage) == [f"{stage} {i}{shard}" for i in range(ITERATIONS) for shard in shards]
    assert advance(run).complete


def test_what_reads_an_output_waits_for_no_job_that_goes_on(scheduler: StreamScheduler) -> None:
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    [stream] = [attempt.job_id for attempt in scheduler.attempts if attempt.stage == "rollout"]
    assert not [a.title for a in scheduler.attempts if a.stage != "chain" and stream in a.dependencies]


def test_a_shard_whose_stream_died_is_taken_up_where_it_was_by_one_that_goes_on_from_there(
    scheduler: StreamScheduler,
) -> None:
    scheduler.dies_at = {(2, 1)}
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    run = scheduler.small.run
    assert first_incomplete(run) == ITERATIONS
    rollouts = [(a.iteration, a.shards, a.until) for a in scheduler.attempts if a.stage == "rollout"]
    assert rollouts == [(0, (0, 1), ITERATIONS), (2, (1,), ITERATIONS)]
    assert scheduler.titles("rollout 2/1") == ["rollout 2/1: NODE_FAIL", "rollout 2/1"]
    assert scheduler.titles("rollout 3/1") == ["rollout 3/1"]
    assert [attempt.iteration for attempt in streams_over(run, 3, [0, 1])] == [0, 2]


def test_a_stream_that_fails_again_and_again_stops_the_chain(scheduler: StreamScheduler) -> None:
    begin_chain(scheduler.small.run, wanted())
    for _ in range(9):
        for attempt in [a for a in scheduler.attempts if a.stage == "rollout"]:
            for shard in attempt.shards:
                if scheduler.infos[attempt.task_id(shard) or ""].is_live:
                    write_end(attempt, shard, TaskEnd(exit_code=65, message="bad data"))
                    task = attempt.task_id(shard) or ""
                    scheduler.infos[task] = info(task, "FAILED", 65)
        advance(scheduler.small.run)

    state = read_chain(scheduler.small.run)
    assert state is not None
    assert state.stopped == "rollout 0/0: bad data"


def test_a_rollout_waits_for_the_one_that_hands_over_to_it(scheduler: StreamScheduler) -> None:
    graph = {job.key: job.depends_on for job in job_graph(scheduler.small.run, range(ITERATIONS))}

    assert graph[JobKey("rollout", 0)] == ()
    assert graph[JobKey("rollout", 1)] == (JobKey("rollout", 0),)
    assert graph[JobKey("rollout", 3)] == (JobKey("sync", 1), JobKey("rollout", 2))

"""The chain against a scheduler in memory: what is submitted, behind what, and what comes of every kind of failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.launch import chain
from slime_stages.launch.chain import advance, begin_chain
from slime_stages.launch.chain_state import Chain, read_chain, stop_chain, write_chain
from slime_stages.launch.states import first_incomplete
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import claim_attempt
from tests.fakes.scheduler import FakeScheduler, Outcome, info
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved

ITERATIONS = 3


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """A run with plans for 3 iterations of 2 shards, and no job yet."""
    settings = resolved(rollout_batch_size=4, n_samples_per_prompt=2, rollout_shards=2)
    small = SmallRun(run=RunDir(tmp_path / "run"), config=settings.config).start(make_model_folder(tmp_path / "model"))
    for iteration in range(ITERATIONS):
        small.plan(iteration)
    return FakeScheduler(small).install(monkeypatch)


def wanted(target: int = ITERATIONS, **settings: object) -> Chain:
    return Chain(target=target, sbatch_folder="/nowhere", **settings)  # type: ignore[arg-type]


def fails(*failures: tuple[str, int, int | None, int], with_: int | str) -> Outcome:
    """Ends these (stage, iteration, shard, try) so, and all others well."""
    return lambda *task: with_ if task in failures else 0


def test_every_stage_of_every_iteration_runs_once_and_in_order(scheduler: FakeScheduler) -> None:
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    assert [title for title in scheduler.order if not title.startswith("chain")] == [
        f"{stage} {iteration}{shard}"
        for iteration in range(ITERATIONS)
        for stage, shards in (("rollout", ("/0", "/1")), ("reward", ("/0", "/1")), ("train", ("",)), ("sync", ("",)))
        for shard in shards
    ]
    assert advance(scheduler.small.run).complete
    assert len(scheduler.titles("chain")) <= 2


def test_only_the_iterations_ahead_are_queued(scheduler: FakeScheduler) -> None:
    result = begin_chain(scheduler.small.run, wanted(lookahead=1))

    assert [(attempt.stage, attempt.iteration) for attempt in result.submitted] == [
        ("rollout", 0),
        ("reward", 0),
        ("train", 0),
        ("sync", 0),
        ("chain", 0),
    ]
    ids = [attempt.job_id for attempt in result.submitted]
    assert [attempt.dependencies for attempt in result.submitted] == [(), *((id_,) for id_ in ids[:-1])]


def test_where_one_process_drives_no_job_submits_another(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(("rollout", 0, 1, 0), with_=1)
    begin_chain(scheduler.small.run, wanted(lookahead=1, is_driven=True))

    scheduler.run_all()
    assert scheduler.titles("chain") == []
    assert first_incomplete(scheduler.small.run) == 0
    first = advance(scheduler.small.run).submitted[0]
    assert (first.stage, first.shards) == ("rollout", (1,))
    for _ in range(10):
        scheduler.run_all()
        advance(scheduler.small.run)
    assert first_incomplete(scheduler.small.run) == ITERATIONS


def test_a_failed_shard_is_submitted_again_alone(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(("rollout", 1, 1, 0), with_=70)
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    assert first_incomplete(scheduler.small.run) == ITERATIONS
    assert scheduler.titles("rollout") == [
        *("rollout 0/0", "rollout 0/1"),
        *("rollout 1/0", "rollout 1/1: 70", "rollout 1/1"),
        *("rollout 2/0", "rollout 2/1"),
    ]
    assert scheduler.titles("reward 1/0") == ["reward 1/0"]
    assert scheduler.titles("train 1") == ["train 1: 66", "train 1"]


def test_a_job_that_waits_is_put_behind_the_new_attempt_before_it(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(("rollout", 0, 0, 0), with_=70)
    begin_chain(scheduler.small.run, wanted(target=1))
    scheduler.run_all()

    assert scheduler.titles("sync") == ["sync 0"]  # it waited for the second train, and never started in vain


def test_the_same_error_twice_stops_the_chain_and_nothing_is_left_waiting(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(*(("rollout", 1, 1, number) for number in range(9)), with_=70)
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    state = read_chain(scheduler.small.run)
    assert state is not None
    assert state.stopped is not None
    assert "rollout 1/1" in state.stopped
    assert "exit 70" in state.stopped
    assert state.advice
    assert scheduler.titles("rollout 1/1") == ["rollout 1/1: 70"] * 2
    assert advance(scheduler.small.run).stopped == state.stopped


def test_iter_after_a_stop_counts_failures_anew(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(("train", 0, None, 0), ("train", 0, None, 1), with_=70)
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()
    assert first_incomplete(scheduler.small.run) == 0

    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    assert first_incomplete(scheduler.small.run) == ITERATIONS


@pytest.mark.parametrize("stage", ["train", "sync"])
def test_the_death_of_a_job_that_carries_the_chain_on_is_mended_behind_it(scheduler: FakeScheduler, stage: str) -> None:
    scheduler.outcome = fails((stage, ITERATIONS - 1, None, 0), with_="NODE_FAIL")
    begin_chain(scheduler.small.run, wanted(lookahead=1))
    scheduler.run_all()

    assert first_incomplete(scheduler.small.run) == ITERATIONS
    assert scheduler.titles(f"{stage} 2") == [f"{stage} 2: NODE_FAIL", f"{stage} 2"]


def test_a_task_cancelled_by_a_person_stops_the_chain(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(("rollout", 0, 1, 0), with_="CANCELLED")
    begin_chain(scheduler.small.run, wanted())
    scheduler.run_all()

    state = read_chain(scheduler.small.run)
    assert state is not None
    assert state.stopped is not None
    assert "rollout 0/1" in state.stopped


def test_who_comes_while_another_submits_is_told_and_submits_nothing(scheduler: FakeScheduler) -> None:
    run = scheduler.small.run
    write_chain(run, wanted())
    real = chain.survey

    def overtaken(*arguments: object, **extra: object) -> object:
        found = real(*arguments, **extra)  # type: ignore[arg-type]
        claim_attempt(run, "rollout", 0, shards=(0, 1), after=0)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "survey", overtaken)
        result = advance(run)

    assert result.is_taken
    assert scheduler.attempts == []


def test_a_second_iter_is_refused_while_jobs_are_queued(scheduler: FakeScheduler) -> None:
    begin_chain(scheduler.small.run, wanted())
    count = len(scheduler.attempts)

    with pytest.raises(UsageError, match="has a chain up to iteration 2 already"):
        begin_chain(scheduler.small.run, wanted())
    assert len(scheduler.attempts) == count


def test_a_shard_that_was_lost_is_made_again_when_the_chain_goes_on(scheduler: FakeScheduler) -> None:
    run = scheduler.small.run
    begin_chain(run, wanted(target=1))
    scheduler.run_all()
    run.manifest_path("rollout", 0, 1, 2).unlink()
    run.shard_path("rollout", 0, 1, 2).unlink()

    begin_chain(run, wanted(target=2))
    scheduler.run_all()

    assert first_incomplete(run) == 2
    assert scheduler.titles("rollout 0/1") == ["rollout 0/1"] * 2
    assert scheduler.titles("rollout 0/0") == ["rollout 0/0"]
    assert scheduler.titles("train 0") == ["train 0"]  # what it was made from is as it was


def test_a_stopped_chain_submits_nothing(scheduler: FakeScheduler) -> None:
    write_chain(scheduler.small.run, wanted())
    stop_chain(scheduler.small.run, "a person said so", "slime-stages iter")

    result = advance(scheduler.small.run)

    assert (result.stopped, result.advice) == ("a person said so", "slime-stages iter")
    assert scheduler.attempts == []


def test_a_node_that_failed_twice_is_avoided(scheduler: FakeScheduler) -> None:
    scheduler.outcome = fails(("train", 0, None, 0), ("train", 0, None, 1), with_="NODE_FAIL")
    begin_chain(scheduler.small.run, wanted(target=1))
    scheduler.run_all()

    trains = [attempt for attempt in scheduler.attempts if attempt.stage == "train"]
    assert [attempt.excluded_nodes for attempt in trains] == [(), (), ("node1",)]


def test_a_requeued_job_is_not_submitted_again(scheduler: FakeScheduler) -> None:
    begin_chain(scheduler.small.run, wanted())
    scheduler.infos = {task: info(task, "REQUEUED") for task in scheduler.infos}
    count = len(scheduler.attempts)

    advance(scheduler.small.run)

    assert len(scheduler.attempts) == count

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.launch.job_graph import JobKey, job_graph
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import shard_ranges
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    """2 shards an iteration; evaluates `held` before the first iteration and after every second one."""
    (tmp_path / "held.jsonl").write_text("{}\n")
    settings = resolved(
        rollout_batch_size=4,
        n_samples_per_prompt=2,
        rollout_shards=2,
        eval_interval=2,
        eval_prompt_data=("held", str(tmp_path / "held.jsonl")),
    )
    return SmallRun(run=RunDir(tmp_path / "run"), config=settings.config).start(make_model_folder(tmp_path / "model"))


def training(small: SmallRun, iterations: range, staleness: int = 0) -> dict[JobKey, tuple[JobKey, ...]]:
    jobs = job_graph(small.run, iterations, staleness=staleness)
    return {job.key: job.depends_on for job in jobs if job.split == "train"}


def test_each_stage_waits_for_the_one_before_and_rollout_for_the_weights(small: SmallRun) -> None:
    graph = training(small, range(2))

    assert graph == {
        JobKey("rollout", 0): (),
        JobKey("reward", 0): (JobKey("rollout", 0),),
        JobKey("train", 0): (JobKey("reward", 0),),
        JobKey("sync", 0): (JobKey("train", 0),),
        JobKey("rollout", 1): (JobKey("sync", 0),),
        JobKey("reward", 1): (JobKey("rollout", 1),),
        JobKey("train", 1): (JobKey("reward", 1),),
        JobKey("sync", 1): (JobKey("train", 1),),
    }


def test_with_staleness_a_rollout_waits_for_earlier_weights_and_training_for_training(small: SmallRun) -> None:
    graph = training(small, range(3), staleness=1)

    assert graph[JobKey("rollout", 1)] == ()  # weights 0, as for iteration 0
    assert graph[JobKey("rollout", 2)] == (JobKey("sync", 0),)
    assert graph[JobKey("train", 2)] == (JobKey("reward", 2), JobKey("train", 1))


def test_the_first_iteration_asked_for_may_wait_for_one_before_it(small: SmallRun) -> None:
    assert training(small, range(5, 6))[JobKey("rollout", 5)] == (JobKey("sync", 4),)


def test_evaluations_come_where_they_are_due_and_at_the_end_and_nothing_waits_for_them(small: SmallRun) -> None:
    jobs = job_graph(small.run, range(3))

    evaluations = [job for job in jobs if job.split == "held"]
    assert [job.key for job in evaluations] == [
        JobKey("rollout", 0, "held"),
        JobKey("reward", 0, "held"),
        JobKey("rollout", 2, "held"),
        JobKey("reward", 2, "held"),
        JobKey("rollout", 3, "held"),
        JobKey("reward", 3, "held"),
    ]
    assert [job.depends_on for job in evaluations[2:4]] == [(JobKey("sync", 1),), (JobKey("rollout", 2, "held"),)]
    assert not any(key.split == "held" for job in jobs if job.split == "train" for key in job.depends_on)


def test_a_part_of_a_chain_evaluates_its_end_only_where_that_is_due(small: SmallRun) -> None:
    def ends(stop: int) -> bool:
        return JobKey("rollout", stop, "held") in {job.key for job in job_graph(small.run, range(stop), final=False)}

    assert (ends(2), ends(3)) == (True, False)


def test_a_frozen_plan_says_how_many_shards_there_are(small: SmallRun) -> None:
    SmallRun(run=small.run, shards=3).plan(0)

    jobs = {job.key: job.shards for job in job_graph(small.run, range(2))}

    assert jobs[JobKey("rollout", 0)] == (0, 1, 2)
    assert jobs[JobKey("rollout", 1)] == (0, 1)
    assert jobs[JobKey("train", 0)] == (None,)


def test_jobs_can_be_submitted_in_their_order(small: SmallRun) -> None:
    seen: set[JobKey] = set()
    for job in job_graph(small.run, range(4), staleness=2):
        assert set(job.depends_on) <= seen
        seen.add(job.key)


def test_neighbouring_shards_are_one_range() -> None:
    assert shard_ranges([0, 1, 2, 3]) == "0-3"
    assert shard_ranges([5, 0, 2, 6, 7]) == "0,2,5-7"
    assert shard_ranges([None]) == ""

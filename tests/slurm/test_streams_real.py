"""Rollouts that go on from one iteration to the next, as tasks of one array on a real SLURM."""

from __future__ import annotations

from collections import Counter

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.states import first_incomplete
from tests.slurm.chains import ChainRun

pytestmark = pytest.mark.slurm

ITERATIONS = 3


def test_one_array_makes_all_rollouts_and_a_task_that_dies_is_begun_again_where_it_was(chain: ChainRun) -> None:
    config = chain.folder / "config.toml"
    streams = "[rollout]\nrollout_streaming = true\nstaleness = 1\n"
    config.write_text(config.read_text().replace("[rollout]\n", streams) + "[algorithm]\nuse_tis = true\n")
    chain.plant(0, 1, "sleep 3")
    chain.plant(0, 4, "exit 1")  # begun when group 0 is done, while the first iteration still waits for group 1
    said = chain.iter(ITERATIONS)

    state = chain.wait(ITERATIONS)

    assert state.stopped is None
    assert first_incomplete(chain.run) == ITERATIONS
    assert said.stdout.split()[0] == chain.attempts("rollout", 0)[0].job_id
    assert [(a.shards, a.until) for a in chain.attempts("rollout", 0)] == [((0, 1), ITERATIONS), ((0,), ITERATIONS)]
    assert [len(chain.attempts("rollout", i)) for i in (1, 2)] == [0, 0]
    assert [len(chain.attempts(stage, i)) for stage in ("reward", "train", "sync") for i in range(3)] == [1] * 9
    stream = {attempt.job_id for attempt in chain.attempts("rollout", 0)}
    assert not stream & {job for i in range(3) for a in chain.attempts("reward", i) for job in a.dependencies}
    assert set(Counter(indices(chain)).values()) == {1}


def indices(chain: ChainRun) -> list[int | None]:
    """Of all samples that an iteration has kept, or the last one has left over."""
    run, shards = chain.run, [(shard, 2) for shard in (0, 1)]
    paths = [run.shard_path("rollout", iteration, *place) for iteration in range(ITERATIONS) for place in shards]
    paths += [run.shard_path("carry", ITERATIONS - 1, *place) for place in shards]
    return [sample.index for path in paths for sample in read_samples(path)]

"""Plans: slices that cover every prompt once, and a plan that stays what it was."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.plan import Plan, freeze_plan, plan_shards, read_plan


def plan(**fields: int) -> Plan:
    values = {
        "iteration": 3,
        "config_revision": 0,
        "policy_version": 3,
        "n_samples_per_prompt": 8,
        "seed": 1,
        **fields,
    }
    return Plan(run_id="run-1", prompts_digest="ab", shuffle=True, shards=plan_shards(96, 32, 3), **values)


def sizes(count: int, shard_count: int) -> list[int]:
    return [shard.stop - shard.start for shard in plan_shards(100, count, shard_count)]


def test_shards_are_slices_whose_sizes_differ_by_one_at_most() -> None:
    assert sizes(8, 4) == [2, 2, 2, 2]
    assert sizes(10, 4) == [2, 3, 2, 3]
    assert sizes(2, 3) == [0, 1, 1]
    assert sizes(5, 1) == [5]
    assert [(shard.shard, shard.start, shard.stop) for shard in plan_shards(96, 32, 3)] == [
        (0, 96, 106),
        (1, 106, 117),
        (2, 117, 128),
    ]


@given(start=st.integers(0, 10**9), count=st.integers(0, 10**6), shard_count=st.integers(1, 200))
def test_shards_cover_every_position_once(start: int, count: int, shard_count: int) -> None:
    shards = plan_shards(start, count, shard_count)

    assert (shards[0].start, shards[-1].stop) == (start, start + count)
    assert all(left.stop == right.start for left, right in pairwise(shards))
    lengths = [shard.stop - shard.start for shard in shards]
    assert max(lengths) - min(lengths) <= 1


def test_the_plan_on_disk_counts(tmp_path: Path) -> None:
    path = tmp_path / "000003" / "plan.json"

    first = freeze_plan(plan(), path)
    second = freeze_plan(plan(seed=2), path)

    assert first == second == read_plan(path) == plan()
    assert first.shard_count == 3


def test_the_digest_changes_with_the_plan_and_with_nothing_else() -> None:
    assert plan().digest == plan().digest
    assert plan().digest != plan(seed=2).digest


def test_training_goes_on_from_the_newest_policy_whatever_weights_generate() -> None:
    late = plan(policy_version=1)

    assert (plan().start_version, plan().trained_version, plan().staleness) == (3, 4, 0)
    assert (late.start_version, late.trained_version, late.staleness) == (3, 4, 2)


def test_a_plan_that_is_missing_or_not_whole_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="there is no plan"):
        read_plan(tmp_path / "plan.json")

    for text in (b"", b"[]", b'{"version": 1}'):
        (tmp_path / "plan.json").write_bytes(text)
        with pytest.raises(DataError, match="is not a whole plan") as caught:
            read_plan(tmp_path / "plan.json")
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(f"rm {tmp_path / 'plan.json'}")


def test_a_plan_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    newer = plan().model_copy(update={"version": 2})
    (tmp_path / "plan.json").write_bytes(newer.to_bytes())

    with pytest.raises(DataError, match="is a plan of version 2; this reads 1"):
        read_plan(tmp_path / "plan.json")

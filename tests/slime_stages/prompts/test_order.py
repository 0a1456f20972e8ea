from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_stages.prompts.order import (
    prompt_at,
    sample_index,
    sampling_seed,
)
from slime_stages.run.plan import plan_shards


def prompts_at(positions: range, *, count: int, seed: int, shuffle: bool) -> list[tuple[int, int]]:
    return [prompt_at(position, count, seed, shuffle) for position in positions]


def shards(start: int, count: int, shard_count: int) -> list[range]:
    return [range(shard.start, shard.stop) for shard in plan_shards(start, count, shard_count)]


def test_without_shuffling_positions_walk_the_table_again_and_again() -> None:
    assert prompts_at(range(5), count=3, seed=42, shuffle=False) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_an_epoch_is_shuffled_as_slime_shuffles_it() -> None:
    random.seed(42 + 3)
    slime_order = list(range(10))
    random.shuffle(slime_order)

    assert prompts_at(range(30, 40), count=10, seed=42, shuffle=True) == [(3, row) for row in slime_order]


def test_the_shuffle_is_the_one_written_down_here() -> None:
    assert [prompt_at(p, 5, 42, True) for p in range(10)] == [
        (0, 3), (0, 1), (0, 2), (0, 4), (0, 0),
        (1, 1), (1, 4), (1, 3), (1, 2), (1, 0),
    ]  # fmt: skip


def test_every_epoch_asks_every_prompt_once() -> None:
    rows = [row for _, row in prompts_at(range(7, 14), count=7, seed=1, shuffle=True)]

    assert sorted(rows) == list(range(7))


def test_an_iteration_may_span_several_epochs() -> None:
    places = prompts_at(range(16, 24), count=3, seed=0, shuffle=False)

    assert places == [(5, 1), (5, 2), (6, 0), (6, 1), (6, 2), (7, 0), (7, 1), (7, 2)]


def test_what_was_asked_before_does_not_change_what_is_asked() -> None:
    alone = prompt_at(1234, 100, 7, True)

    prompts_at(range(1200), count=100, seed=7, shuffle=True)

    assert prompt_at(1234, 100, 7, True) == alone


def test_ten_positions_in_four_shards_are_2_3_2_3() -> None:
    parts = shards(100, 10, 4)

    assert parts == [range(100, 102), range(102, 105), range(105, 107), range(107, 110)]


@given(st.integers(0, 200), st.integers(1, 50))
def test_shards_cover_all_positions_once_and_differ_by_one_at_most(count: int, shard_count: int) -> None:
    parts = shards(3, count, shard_count)

    assert [position for part in parts for position in part] == list(range(3, 3 + count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_samples_are_numbered_over_the_whole_run() -> None:
    assert [sample_index(3, sample, 4) for sample in range(4)] == [12, 13, 14, 15]


def test_sampling_seeds_are_the_same_on_every_machine() -> None:
    assert [sampling_seed(42, 0, 0, 0), sampling_seed(42, 0, 0, 1)] == [169471462, 174196650]


@pytest.mark.parametrize("axis", range(4))
def test_sampling_seeds_are_in_range_and_differ_along_every_axis(axis: int) -> None:
    seeds = [sampling_seed(*[step if place == axis else 5 for place in range(4)]) for step in range(1000)]

    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == 1000

"""The schedule against slime's values, and its promises on random iterations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_stages.errors import DataError, UsageError
from stages.train.algorithm.schedule import DataParallelSchedule, ScheduleOptions, build_dp_schedule

LENGTHS = [6, 5, 4, 3, 9, 2]


def dynamic(global_batch_size: int, **changes: Any) -> ScheduleOptions:
    options = {"dp_size": 2, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 10, **changes}
    return ScheduleOptions(global_batch_size=global_batch_size, **options)


def test_dynamic_micro_batches_give_slimes_values() -> None:
    schedule = build_dp_schedule(LENGTHS, range(6), dynamic(6))

    assert schedule == DataParallelSchedule(
        partitions=[[0, 2, 4], [1, 3, 5]],
        micro_batch_indices=[[[0, 1], [2]], [[0], [1, 2]]],
        num_microbatches=[2],
        global_batch_sizes=[6],
        trailing=[],
        oversized=[],
    )


def test_siblings_stay_in_one_step_and_the_trailing_rollout_is_returned() -> None:
    schedule = build_dp_schedule([*LENGTHS, 7], [10, 10, 11, 12, 12, 13, 14], dynamic(2))

    assert schedule == DataParallelSchedule(
        partitions=[[0, 2, 3, 5], [1, 4]],
        micro_batch_indices=[[[0, 1], [2, 3]], [[0], [1]]],
        num_microbatches=[1, 1],
        global_batch_sizes=[2, 2],
        trailing=[6],
        oversized=[],
    )


def test_a_sample_over_the_budget_is_alone_and_reported() -> None:
    schedule = build_dp_schedule([25, 4, 4, 3], range(4), dynamic(4))

    assert schedule.partitions == [[0, 3], [1, 2]]
    assert schedule.micro_batch_indices == [[[0], [1]], [[0], [1]]]
    assert schedule.num_microbatches == [2]
    assert schedule.oversized == [0]


def test_static_micro_batches_give_slimes_values() -> None:
    schedule = build_dp_schedule([6, 5, 4, 3], range(4), ScheduleOptions(global_batch_size=2, dp_size=2))

    assert schedule.partitions == [[0, 2], [1, 3]]
    assert schedule.num_microbatches == [1, 1]


def test_a_step_can_be_read_as_positions_per_micro_batch() -> None:
    schedule = build_dp_schedule([*LENGTHS, 7], [10, 10, 11, 12, 12, 13, 14], dynamic(2))

    assert [schedule.micro_batches(rank, step) for step in range(2) for rank in range(2)] == [
        [[0, 2]],
        [[1]],
        [[3, 5]],
        [[4]],
    ]


def test_siblings_that_do_not_stand_together_are_brought_together() -> None:
    schedule = build_dp_schedule([1] * 4, [8, 9, 8, 9], ScheduleOptions(global_batch_size=1, micro_batch_size=2))

    assert [schedule.micro_batches(0, step) for step in range(2)] == [[[0, 2]], [[1, 3]]]


def test_context_parallel_ranks_widen_the_budget() -> None:
    schedule = build_dp_schedule([8, 8], range(2), dynamic(2, dp_size=1, cp_size=2))

    assert schedule.micro_batches(0, 0) == [[0, 1]]
    assert schedule.oversized == []


def test_interleaving_makes_each_ranks_micro_batches_a_multiple() -> None:
    schedule = build_dp_schedule([1] * 8, range(8), dynamic(8, micro_batch_multiple=2))

    assert schedule.num_microbatches == [2]


def test_balance_data_gives_ranks_equal_cost() -> None:
    lengths = [9, 1, 8, 2]

    in_turn = build_dp_schedule(lengths, range(4), ScheduleOptions(global_batch_size=4, dp_size=2))
    balanced = build_dp_schedule(lengths, range(4), ScheduleOptions(global_batch_size=4, dp_size=2, balance_data=True))

    assert in_turn.partitions == [[0, 2], [1, 3]]  # 17 tokens against 3
    assert sorted(balanced.partitions) == [[0, 1], [2, 3]]  # 10 and 10


def test_costs_replace_lengths_where_ranks_are_balanced() -> None:
    options = ScheduleOptions(global_batch_size=4, dp_size=2, balance_data=True)

    schedule = build_dp_schedule([1] * 4, range(4), options, costs=[81.0, 1.0, 64.0, 4.0])

    assert sorted(schedule.partitions) == [[0, 1], [2, 3]]


def test_balance_by_flops_packs_by_cost_within_the_budget() -> None:
    schedule = build_dp_schedule([6, 4, 5, 5], range(4), dynamic(4, balance_by_flops=True), costs=[36, 16, 25, 25])

    assert sorted(map(sorted, schedule.partitions)) == [[0, 1], [2, 3]]
    assert schedule.num_microbatches == [1]


def test_too_few_rollouts_are_refused_with_both_numbers() -> None:
    with pytest.raises(DataError, match="3 rollouts do not fill a step of global_batch_size 4") as caught:
        build_dp_schedule([1] * 5, [0, 0, 1, 2, 2], dynamic(4))

    assert caught.value.hint == "generate more, or `--global-batch-size 3`"


def test_fewer_samples_than_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="step 0 has 1 samples for 2 micro-batches at least"):
        build_dp_schedule([1], [0], dynamic(1))


def test_long_samples_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(UsageError, match="step 0 has 3 samples, which cannot form a multiple of 2"):
        build_dp_schedule([9, 9, 9], range(3), dynamic(3))


def test_static_micro_batches_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(UsageError, match="3 micro-batches of micro_batch_size 1: not a multiple of 2"):
        build_dp_schedule([1] * 3, range(3), ScheduleOptions(global_batch_size=3, dp_size=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dynamic_batch_size": True}, "needs `max_tokens_per_gpu`"),
        ({"balance_by_flops": True}, "needs `use_dynamic_batch_size`"),
        ({"dp_size": 0}, "`dp_size` is 0"),
    ],
)
def test_options_that_contradict_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ScheduleOptions(global_batch_size=1, **changes)


@settings(deadline=None, max_examples=150)
@given(
    sizes=st.lists(st.lists(st.integers(1, 14), min_size=1, max_size=3), min_size=4, max_size=20),
    global_batch_size=st.integers(1, 4),
    balance=st.sampled_from([{}, {"balance_data": True}, {"balance_by_flops": True}]),
)
def test_every_sample_is_placed_once_or_trailing_and_budgets_hold(
    sizes: list[list[int]], global_batch_size: int, balance: dict[str, bool]
) -> None:
    lengths = [length for rollout in sizes for length in rollout]
    rollout_ids = [100 + id_ for id_, rollout in enumerate(sizes) for _ in rollout]
    try:
        schedule = build_dp_schedule(lengths, rollout_ids, dynamic(global_batch_size, **balance))
    except UsageError:
        return

    placed = [position for partition in schedule.partitions for position in partition]
    assert sorted(placed + schedule.trailing) == list(range(len(lengths)))
    assert len({rollout_ids[position] for position in schedule.trailing}) == len(sizes) % global_batch_size
    for rank, partition in enumerate(schedule.partitions):
        flat = [index for micro_batch in schedule.micro_batch_indices[rank] for index in micro_batch]
        assert flat == list(range(len(partition)))
        assert len(schedule.micro_batch_indices[rank]) == sum(schedule.num_microbatches)
    for step in range(len(schedule.num_microbatches)):
        batches = [batch for rank in range(2) for batch in schedule.micro_batches(rank, step)]
        assert len({rollout_ids[position] for batch in batches for position in batch}) == global_batch_size
        for batch in batches:
            assert len(batch) == 1 or sum(lengths[position] for position in batch) <= 10

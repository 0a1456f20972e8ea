"""What filters, rewards and functions of the user decide in whole rollout calls, of fan-outs too."""

from __future__ import annotations

from typing import Any

import pytest

from slime_stages.errors import DataError
from slime_stages.run.manifest import read_manifest
from slime_stages.sample import Sample, Status
from tests.stages.rollout.carried_runs import CarriedRun, Start, account, behaviour, cut_short

FILTER = "slime_stages.generation.filters.check_reward_nonzero_std"
seen: list[tuple[Any, ...]] = []


def test_groups_whose_rewards_agree_are_dropped_and_others_take_their_place(start: Start) -> None:
    made = start(dynamic_sampling_filter_path=FILTER)
    behaviour.rewards = {1: 1.0, 2: 0.0}

    manifest = made.roll(0)

    issued, taken, kept, dropped, carried = account(manifest)
    assert (taken, kept, dropped) == (0, 4, 2)
    assert issued == kept + dropped + carried
    assert (manifest.counts["dropped/zero_std_1.0"], manifest.counts["dropped/zero_std_0.0"]) == (1, 1)
    assert manifest.metrics["rollout/dynamic_filter/drop_zero_std_1.0"] == 1.0
    assert not {1, 2} & set(made.positions(0))
    assert [sample.reward for sample in made.samples(0)] == [0.0, 1.0] * 4
    assert manifest.outputs["carry"]["groups"] == carried


def test_prompts_that_are_all_dropped_end_in_an_error_that_counts_them(start: Start) -> None:
    made = start(dynamic_sampling_filter_path=FILTER, rollout_max_refills=1)
    behaviour.rewards = dict.fromkeys(range(100), 1.0)

    with pytest.raises(DataError, match=r"0 of 4 groups are kept after 8 prompts and 1 refills; 8 .*8 zero_std_1.0"):
        made.roll(0)


def look(args: Any, groups: list[list[Sample]], get_samples: Any = None) -> None:
    seen.append((len(groups), [group[0].group_index for group in groups], get_samples and get_samples(2)))
    if get_samples is None:
        groups[0][0].remove_sample = True


def test_functions_of_the_user_see_kept_groups_and_all_finished_ones(start: Start) -> None:
    made = start(
        dynamic_sampling_filter_path=FILTER,
        rollout_sample_filter_path=f"{__name__}.look",
        rollout_all_samples_process_path=f"{__name__}.look",
    )
    behaviour.rewards = {1: 1.0}
    seen.clear()

    made.roll(0)

    (kept, kept_positions, _), (finished, positions, upcoming) = seen
    assert (kept, kept_positions) == (4, made.positions(0))
    assert finished >= 5
    assert positions == sorted(positions)
    assert {0, 1} <= set(positions)
    following = read_manifest_next(made)
    assert [group[0].group_index for group in upcoming] == [following, following + 1]
    assert [sample.remove_sample for sample in made.samples(0)] == [True, *[False] * 7]


def read_manifest_next(made: CarriedRun) -> int:
    return int(read_manifest(made.run.manifest_path("rollout", 0, 0, 1)).outputs["carry"]["next"])


def newest_first(args: Any, rollout_id: None, buffer: list[Any], num_samples: int) -> list[Any]:
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


def test_the_buffer_filter_chooses_among_handed_over_groups(start: Start) -> None:
    made = start(over_sampling_batch_size=8, buffer_filter_path=f"{__name__}.newest_first")
    made.roll(0)
    made.end_iteration(0)

    made.roll(1)

    assert len(made.positions(1)) == 4


def test_a_reward_that_fails_drops_its_group_and_the_filter_is_not_asked(start: Start) -> None:
    made = start(dynamic_sampling_filter_path=FILTER, custom_rm_path=f"{__name__}.broken_on_prompt_1")

    manifest = made.roll(0)

    assert manifest.counts["dropped/reward_error"] == 1
    assert 1 not in made.positions(0)


def broken_on_prompt_1(args: Any, sample: Sample, **kwargs: Any) -> float:
    if sample.group_index == 1:
        raise ValueError("no grade")
    return float((sample.index or 0) % 2)


def test_fan_outs_are_filtered_and_cut_short_like_other_groups(start: Start) -> None:
    made = start(
        dynamic_sampling_filter_path=FILTER,
        custom_generate_function_path=f"{__name__}.siblings",
        custom_rm_path=f"{__name__}.list_reward",
        group_rm=True,
        partial_rollout=True,
        rollout_quorum=0.75,
    )
    behaviour.seconds = {2: 60.0}

    manifest = made.roll(0)

    assert manifest.counts["kept"] == 3
    kept = [sample for sample in made.samples(0) if sample.group_index == 0]
    assert [(s.index, s.rollout_id, s.reward) for s in kept] == [(0, 0, 0.0), (0, 0, 1.0), (1, 1, 2.0), (1, 1, 3.0)]
    left = [sample for sample in made.samples(0, stage="carry") if sample.group_index == 2]
    assert [(s.index, s.rollout_id, s.status, s.response_length) for s in left] == [
        (4, None, Status.PENDING, 0),
        (5, None, Status.PENDING, 0),
    ]


async def siblings(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    twin = Sample.from_dict(sample.to_dict())
    return [await cut_short(args, sample, sampling_params), await cut_short(args, twin, sampling_params)]


def list_reward(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    return [float(place) for place in range(len(samples))]

"""Reward normalisation: slime's values where its groups by position are the prompts, the right ones elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from stages.train.algorithm.rewards import normalize_rewards, post_process_rewards

TWO_GROUPS_OF_FOUR = [7, 7, 7, 7, 8, 8, 8, 8]


def test_rewards_are_centred_and_scaled_within_each_group() -> None:
    rewards = normalize_rewards([1, 0, 0, 1, 1, 1, 1, 1], TWO_GROUPS_OF_FOUR, std=True)

    assert rewards.dtype == np.float32
    assert rewards.tolist() == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024, 0, 0, 0, 0], abs=1e-6)


def test_without_std_rewards_are_only_centred() -> None:
    rewards = normalize_rewards([1, 0, 0, 1, 1, 1, 1, 0], TWO_GROUPS_OF_FOUR, std=False)

    assert rewards.tolist() == [0.5, -0.5, -0.5, 0.5, 0.25, 0.25, 0.25, -0.75]


def test_one_group_of_uneven_size_gives_slimes_whole_batch_values() -> None:
    rewards = normalize_rewards([1, 0, 0, 1, 1], [3] * 5, std=True)

    assert rewards.tolist() == pytest.approx([0.730295, -1.095443, -1.095443, 0.730295, 0.730295], abs=1e-6)


def test_groups_are_found_wherever_their_samples_stand() -> None:
    rewards = normalize_rewards([1, 5, 0, 7], [2, 9, 2, 9], std=False)

    assert rewards.tolist() == [0.5, -1.0, -0.5, 1.0]


def test_fan_out_does_not_mix_prompts() -> None:
    # slime, grouping by position, gives ±.707106: its third sample was compared with another prompt's.
    rewards = normalize_rewards([1, 0, 0, 1], [5, 5, 5, 6], std=True)

    assert rewards.tolist() == pytest.approx([1.154698, -0.577349, -0.577349, 0.0], abs=1e-6)


def test_a_group_of_one_becomes_zero_with_and_without_std() -> None:
    assert normalize_rewards([0.3], [4], std=True).tolist() == [0.0]
    assert normalize_rewards([0.3, 1, 2], [4, 5, 5], std=False).tolist() == [0.0, -0.5, 0.5]


def test_equal_rewards_that_floats_cannot_hold_give_no_noise_worth_scaling() -> None:
    rewards = normalize_rewards([0.1] * 3, [0] * 3, std=True)

    assert np.abs(rewards).max() < 1e-9


def test_no_samples_give_no_rewards() -> None:
    assert normalize_rewards([], [], std=True).tolist() == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_an_unscored_sample_is_our_mistake(value: float | None) -> None:
    with pytest.raises(AssertionError):
        normalize_rewards([1.0, value], [0, 0], std=False)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", [0.707106, -0.707106]),
        ("gspo", [0.707106, -0.707106]),
        ("cispo", [0.707106, -0.707106]),
        ("reinforce_plus_plus_baseline", [0.5, -0.5]),
        ("reinforce_plus_plus", [1.0, 0.0]),
        ("ppo", [1.0, 0.0]),
    ],
)
def test_each_estimator_gets_its_kind_of_reward(estimator: str, expected: list[float]) -> None:
    rewards = post_process_rewards([1.0, 0.0], [0, 0], advantage_estimator=estimator)  # type: ignore[arg-type]

    assert rewards.tolist() == pytest.approx(expected, abs=1e-6)


def test_normalisation_and_its_std_can_be_turned_off() -> None:
    def process(**options: bool) -> list[float]:
        return post_process_rewards([1.0, 0.0], [0, 0], advantage_estimator="grpo", **options).tolist()

    assert process(rewards_normalization=False) == [1.0, 0.0]
    assert process(grpo_std_normalization=False) == [0.5, -0.5]

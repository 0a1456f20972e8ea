"""The stock filters, with slime's numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slime_stages.generation.filters import check_reward_nonzero_std, check_reward_nonzero_std_with_fallback
from slime_stages.sample import Sample

ARGS = SimpleNamespace(reward_key=None)


def group(*rewards: float) -> list[Sample]:
    return [Sample(reward=reward) for reward in rewards]


@pytest.mark.parametrize(
    ("rewards", "keep", "reason"),
    [
        ((1.0, 0.0), True, None),
        ((1.0, 1.0), False, "zero_std_1.0"),
        ((0.25, 0.25, 0.25), False, "zero_std_0.2"),  # as Python rounds
        ((0.5, 0.5 + 1e-7), False, "zero_std_0.5"),
        ((0.5, 0.5 + 1e-5), True, None),
        ((1.0,), False, "zero_std_1.0"),
    ],
)
def test_a_group_is_kept_if_its_rewards_differ(rewards: tuple[float, ...], keep: bool, reason: str | None) -> None:
    found = check_reward_nonzero_std(ARGS, group(*rewards))

    assert (found.keep, found.reason, found.keep_when_insufficient) == (keep, reason, False)


def test_the_fallback_keeps_a_group_rather_than_asking_another() -> None:
    found = check_reward_nonzero_std_with_fallback(ARGS, group(1.0, 1.0))

    assert (found.keep, found.reason, found.keep_when_insufficient) == (False, "zero_std_1.0", True)


def test_the_entry_of_a_dict_reward_counts() -> None:
    samples = [Sample(reward={"right": 1.0, "length": length}) for length in (1.0, 2.0)]

    assert check_reward_nonzero_std(SimpleNamespace(reward_key="length"), samples).keep
    assert not check_reward_nonzero_std(SimpleNamespace(reward_key="right"), samples).keep

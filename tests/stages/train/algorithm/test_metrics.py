"""slime's sample metrics by hand."""

from __future__ import annotations

from stages.train.algorithm.metrics import zero_std_counts


def test_groups_of_equal_rewards_are_counted_by_reward() -> None:
    rewards, groups = [1, 1, 0, 0, 1, 0, 0, 0], [3, 3, 4, 4, 5, 5, 6, 6]

    assert zero_std_counts(rewards, groups) == {"zero_std/count_0.0": 2, "zero_std/count_1.0": 1}


def test_almost_equal_rewards_are_not_counted() -> None:
    assert zero_std_counts([0.5, 0.5 + 1e-12], [0, 0]) == {}

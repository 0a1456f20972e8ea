"""slime's sample metrics by hand."""

from __future__ import annotations

import random
import string

from stages.train.algorithm.metrics import (
    has_repetition,
    length_statistics,
    repetition_frac,
    truncated_ratio,
    zero_std_counts,
)


def test_length_statistics_have_slimes_keys() -> None:
    assert length_statistics([1, 2, 9]) == {
        "response_len/mean": 4.0,
        "response_len/median": 2.0,
        "response_len/max": 9.0,
        "response_len/min": 1.0,
    }
    assert length_statistics([]) == {}


def test_groups_of_equal_rewards_are_counted_by_reward() -> None:
    rewards, groups = [1, 1, 0, 0, 1, 0, 0, 0], [3, 3, 4, 4, 5, 5, 6, 6]

    assert zero_std_counts(rewards, groups) == {"zero_std/count_0.0": 2, "zero_std/count_1.0": 1}


def test_almost_equal_rewards_are_not_counted() -> None:
    assert zero_std_counts([0.5, 0.5 + 1e-12], [0, 0]) == {}


def test_a_long_response_that_repeats_itself_is_found() -> None:
    letters = random.Random(0)
    varied = "".join(letters.choice(string.ascii_letters) for _ in range(10_001))

    assert has_repetition("wait, " * 2000)
    assert not has_repetition("wait, " * 1000)
    assert not has_repetition(varied)
    assert has_repetition(varied + "no. " * 2500)
    assert repetition_frac(["wait, " * 2000, varied]) == 0.5
    assert repetition_frac([]) == 0.0


def test_a_lone_surrogate_does_not_stop_the_metrics() -> None:
    assert has_repetition("\ud800" * 10_001)


def test_truncated_ratio_is_a_share() -> None:
    assert truncated_ratio([1, 0, 0, 0]) == 0.25
    assert truncated_ratio([]) == 0.0

"""pass@k by hand: 1 - C(n - c, k) / C(n, k)."""

from __future__ import annotations

import pytest

from slime_stages.passrate import estimate_pass_at_k, pass_rates


def test_pass_at_k_is_the_share_of_draws_with_a_right_attempt() -> None:
    assert estimate_pass_at_k(4, 1, 1) == pytest.approx(0.25)
    assert estimate_pass_at_k(4, 1, 2) == pytest.approx(0.5)  # 1 - 3/6
    assert estimate_pass_at_k(4, 2, 2) == pytest.approx(5 / 6)  # 1 - 1/6
    assert estimate_pass_at_k(4, 0, 4) == 0.0
    assert estimate_pass_at_k(4, 2, 4) == 1.0


def test_pass_rates_are_means_over_prompts() -> None:
    rates = pass_rates([1, 0, 0, 0, 1, 1, 0, 0], [0] * 4 + [1] * 4, range(8))

    assert rates == pytest.approx({"pass@1": (0.25 + 0.5) / 2, "pass@2": (0.5 + 5 / 6) / 2, "pass@4": 1.0})


def test_siblings_of_one_rollout_are_one_attempt() -> None:
    rates = pass_rates([1, 1, 1, 0], [0] * 4, [7, 7, 7, 8])

    assert rates == pytest.approx({"pass@1": 0.5, "pass@2": 1.0})


def test_a_group_that_lost_attempts_counts_for_the_k_it_can_answer() -> None:
    rates = pass_rates([0, 0, 1], [0, 0, 1], [0, 1, 2])

    assert rates == pytest.approx({"pass@1": 0.5, "pass@2": 0.0})


def test_single_attempts_have_no_pass_rates() -> None:
    assert pass_rates([1, 1], [0, 1], [0, 1]) == {}
    assert pass_rates([], [], []) == {}

from __future__ import annotations

from slime_stages.rewards.graders.random import grade_random


def test_a_seed_fixes_the_coin_and_seeds_differ() -> None:
    tosses = [grade_random(f"1:{index}") for index in range(50)]

    assert tosses == [grade_random(f"1:{index}") for index in range(50)]
    assert set(tosses) == {0, 1}


def test_without_a_seed_it_is_tossed_each_time() -> None:
    assert {grade_random() for _ in range(100)} == {0, 1}

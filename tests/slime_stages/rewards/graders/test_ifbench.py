from __future__ import annotations

import random
import socket
from typing import Any

import pytest

from slime_stages.errors import DataError
from slime_stages.rewards.graders.ifbench import arguments_of, grade_ifbench

RANGE = "count:word_count_range"


def metadata(*names: str, kwargs: Any) -> dict[str, Any]:
    return {"instruction_id_list": list(names), "kwargs": kwargs}


@pytest.mark.parametrize(
    ("response", "reward"),
    [("one two three", 1.0), ("one two three four five", 0.0), ("", 0.0)],
)
def test_a_response_that_follows_its_instruction_gets_1_and_any_other_0(response: str, reward: float) -> None:
    given = metadata(RANGE, kwargs=[{"min_words": 2, "max_words": 4, "keyword": None}])

    assert grade_ifbench(response, "", given) == reward


def test_all_instructions_must_be_followed() -> None:
    given = metadata(RANGE, "format:no_whitespace", kwargs=[{"min_words": 1, "max_words": 4}, {}])

    assert grade_ifbench("one two", "", given) == 0.0
    assert grade_ifbench("one", "", given) == 1.0


def test_arguments_are_a_list_or_one_dict_for_all() -> None:
    assert arguments_of({"n": 1, "m": None}, 2) == [{"n": 1}, {"n": 1}]
    assert arguments_of([{"n": 1}, {"n": 2}], 3) == [{"n": 1}, {"n": 2}, {"n": 2}]
    assert arguments_of([{"n": 1}, {"n": 2}], 1) == [{"n": 1}]
    assert arguments_of(None, 2) == arguments_of([], 2) == [{}, {}]
    assert arguments_of([None, {"n": 2}], 2) == [{}, {"n": 2}]


def test_arguments_left_out_are_the_same_each_time_and_leave_other_dice_alone() -> None:
    random.seed(3)
    expected = random.Random(3).random()

    first = grade_ifbench("one two three", "", metadata("words:vowel", kwargs=None))

    assert random.random() == expected
    assert first == grade_ifbench("one two three", "", metadata("words:vowel", kwargs=None))


def test_no_network_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from slime_stages.rewards.graders import ifbench

    ifbench._checkers.cache_clear()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked for an address"))

    assert grade_ifbench("one", "", metadata(RANGE, kwargs={"min_words": 1, "max_words": 1})) == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs `instruction_id_list`"),
        (metadata("count:nothing", kwargs=[{}]), "knows no instruction `count:nothing`"),
        (metadata(RANGE, kwargs=["a"]), "must be a dict or a list of dicts"),
    ],
)
def test_instructions_that_cannot_be_checked_are_errors_and_no_zeros(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        grade_ifbench("a", "", given)

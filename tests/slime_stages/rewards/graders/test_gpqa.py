from __future__ import annotations

from typing import Any

import pytest

from slime_stages.errors import DataError
from slime_stages.rewards.graders.gpqa import find_letter, grade_gpqa

FOUR = {"choices": ["red", "green", "blue", "dark grey"]}


@pytest.mark.parametrize(
    ("response", "label", "metadata", "reward"),
    [
        ("The answer is (B)", "B", FOUR, 1.0),
        ("Answer: A", 0, FOUR, 1.0),
        ("Answer: C", 0, FOUR, 0.0),
        ("The final answer is: **D**", "dark grey", FOUR, 1.0),
        ("C is the correct one", "C", FOUR, 1.0),
        ("Answer: E, no, I take B", "B", FOUR, 1.0),
        ("<think>Answer: A</think> Answer: B", "B", FOUR, 1.0),
        ("Answer: B", None, FOUR | {"correct_letter": "b"}, 1.0),
        ("Answer: X", "X", {"valid_letters": ["X", "Y"]}, 1.0),
        ("Answer: F", "F", {}, 1.0),
        ("Answer: B", 1, {"choices": {"A": "red", "B": "green"}}, 1.0),
        ("so \\boxed{\\text{D}}", "D", {}, 1.0),
    ],
)
def test_the_letter_that_the_response_settles_on_is_compared(
    response: str, label: Any, metadata: dict[str, Any], reward: float
) -> None:
    assert grade_gpqa(response, label, metadata) == reward


def test_a_letter_stands_alone_so_that_is_does_not_answer_i() -> None:
    """slime reads an I here, from the word behind "answer", and says 0."""
    assert grade_gpqa("The answer is (B)", "B", {}) == 1.0
    assert find_letter("I think it is hard", list("ABCDEFGHIJ")) is None
    assert find_letter("the answer is a number, so C", list("ABCD")) == "C"


@pytest.mark.parametrize(
    ("response", "label", "metadata", "reward"),
    [
        ("It is the dark, grey one", "D", FOUR, 1.0),
        ("it is red", "D", FOUR, 0.0),
        ("it is Paris.", "Paris", {}, 1.0),
        ("it is parisian", "Paris", {}, 0.0),
        ("about 3.14 m", None, {"correct_answer": "3.14"}, 1.0),
        ("about 3", None, {"answer_text": "3.14"}, 0.0),
    ],
)
def test_without_a_letter_the_right_answers_text_is_looked_for(
    response: str, label: Any, metadata: dict[str, Any], reward: float
) -> None:
    assert grade_gpqa(response, label, metadata) == reward


@pytest.mark.parametrize("label", [None, "", 7, -1])
def test_a_question_without_a_right_answer_is_an_error_and_no_zero(label: Any) -> None:
    with pytest.raises(DataError, match="reward type `gpqa` needs a label"):
        grade_gpqa("Answer: A", label, FOUR)

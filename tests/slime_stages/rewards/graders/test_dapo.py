from __future__ import annotations

import pytest

from slime_stages.rewards.graders.dapo import grade_dapo


@pytest.mark.parametrize(
    ("response", "label", "score", "prediction"),
    [
        ("Answer: 42", "42", 1.0, "42"),
        ("Answer: 42.", "42", -1.0, "42."),
        ("answer : $42$", "42", 1.0, "42"),
        ("foo", "42", -1.0, "[INVALID]"),
        ("Answer: 1,000", "1000", 1.0, "1000"),
        ("Answer: 1\nAnswer: 2", "2", 1.0, "2"),
    ],
)
def test_answers_are_graded_as_slime_grades_them(response: str, label: str, score: float, prediction: str) -> None:
    assert grade_dapo(response, label) == {"score": score, "acc": score > 0, "pred": prediction}


@pytest.mark.parametrize(
    ("answer", "prediction"),
    [
        ("x = 5 dollars", "5"),
        (r"\boxed{7}", "7"),
        (r"\text{blue}", "blue"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"90^\circ", "90"),
        ("so it is $3$ here", "3"),
        ("12<|im_end|>", "12"),
    ],
)
def test_an_answer_is_stripped_to_what_counts(answer: str, prediction: str) -> None:
    assert grade_dapo(f"Answer: {answer}", "0")["pred"] == prediction


@pytest.mark.parametrize("truth", ["1/2", "1.5", "inf", "north"])
def test_a_truth_that_is_no_integer_is_compared_as_text(truth: str) -> None:
    assert grade_dapo(f"Answer: {truth}", truth)["score"] == 1.0
    assert grade_dapo("Answer: 1", truth)["score"] == -1.0


@pytest.mark.parametrize("truth", ["42.0", " 042", 42, 42.0])
def test_an_integer_truth_may_be_spelled_in_any_way(truth: object) -> None:
    assert grade_dapo("Answer: 42", truth)["acc"]


def test_an_integer_truth_keeps_all_its_digits() -> None:
    assert grade_dapo("Answer: 12345678901234567891", "12345678901234567891")["acc"]
    assert not grade_dapo("Answer: 12345678901234567891", "12345678901234567890")["acc"]


def test_only_the_last_300_characters_count() -> None:
    assert grade_dapo("Answer: 42\n" + "x" * 289, "42")["acc"]
    assert grade_dapo("Answer: 42\n" + "x" * 300, "42")["pred"] == "[INVALID]"


def test_a_strict_box_wants_the_exact_text_within_the_last_100_characters() -> None:
    assert grade_dapo(r"\boxed{1} \boxed{42}", "42", strict_box=True) == {"score": 1.0, "acc": True, "pred": "42"}
    assert grade_dapo(r"\boxed{42.0}", "42", strict_box=True) == {"score": -1.0, "acc": False, "pred": "42.0"}
    assert grade_dapo("Answer: 42", "42", strict_box=True) == {"score": -1.0, "acc": False, "pred": None}
    assert grade_dapo(r"\boxed{42}" + "x" * 91, "42", strict_box=True)["pred"] is None

from __future__ import annotations

import pytest

from slime_stages.rewards.graders.math import grade_math


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"\boxed{1/2}", r"\frac{1}{2}", 1),
        (r"\boxed{2/4}", "1/2", 0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        (r"\boxed{2x+2}", "2(x+1)", 1),
        (r"\boxed{1,000}", "1000", 1),
        (r"\boxed{(1,2)}", "(1, 2)", 1),
        (r"\boxed{3.0}", "3", 1),
        (r"\fbox{3}", "3", 0),
        (r"\boxed 3", "3", 0),
        (r"\boxed{\text{Yes}}", "yes", 1),
        (r"\boxed{5 cm}", "5", 1),
        (r"\boxed{[1,2)}", "(1,2)", 0),
        (r"\boxed{x=3}", "3", 1),
        ("3", "3", 0),
        (r"\boxed{3}", 0, 0),
        (r"\boxed{3}", 3, 1),
        (r"\boxed{1}\boxed{2}", "2", 1),
    ],
)
def test_answers_are_graded_as_slime_grades_them(response: str, label: object, reward: int) -> None:
    assert grade_math(response, label) == reward


def test_the_integer_zero_is_a_label_and_no_label_is_none() -> None:
    assert grade_math(r"\boxed{0}", 0) == 1
    assert grade_math(r"\boxed{}", "") == 0
    assert grade_math(r"\boxed{None}", None) == 0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        (r".5", "0.5"),
        (r"\$5", "5"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        (r"5\text{ cm}", "5"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"\left(1,\infty\right)", r"(1, \infty)"),
        (r"1\frac12", "3/2"),
        (r"2 million", "2*10^6"),
        (r"3 \text{ and } 4", "3,4"),
        (r"\frac{x+1}{2}", "(x+1)/2"),
        (r"\frac{\sqrt{3}}{2}", r"\frac{3}{2\sqrt{3}}"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        (r"x^2-1", "(x-1)(x+1)"),
        (r"2\pi", "2pi"),
        (r"\boxed{7}", r"\boxed{7}"),
    ],
)
def test_two_forms_of_one_answer_are_equal(answer: str, truth: str) -> None:
    assert grade_math(rf"so \boxed{{{answer}}}", truth) == 1


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("2.5", "2"),
        ("(1,2,3)", "(1,2)"),
        (r"\frac{x+1}{2}", "x+1/2"),
        (r"\sqrt[3]{8}", r"\sqrt{8}"),
        ("abc", "cba"),
        ("12345678901234567890", "12345678901234567891"),
        ("().a", "1"),
        ("", "5"),
    ],
)
def test_different_answers_are_not_equal(answer: str, truth: str) -> None:
    assert grade_math(rf"so \boxed{{{answer}}}", truth) == 0


@pytest.mark.parametrize("answer", ["9^9^9^9^9", "9**9**9**9**9", "9^{9^{9^{9}}}", "10^(10^10)", "x^9999999999"])
def test_towers_of_powers_are_not_evaluated(answer: str) -> None:
    assert grade_math(rf"\boxed{{{answer}}}", "x") == 0

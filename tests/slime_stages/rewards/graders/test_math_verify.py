from __future__ import annotations

import pytest

from slime_stages.errors import DataError
from slime_stages.rewards.graders.math_verify import grade_math_verify


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"so \boxed{2/4}", "1/2", 1),
        (r"it is $\{1,2\}$", r"\{2,1\}", 1),
        (r"$x < 3$", "x<3", 1),
        (r"The answer is 3.0", "3", 1),
        (r"\boxed{3}", 4, 0),
        (r"\boxed{0}", 0, 1),
        ("no idea", "4", 0),
        (r"\boxed{7}", r"it is $7$", 1),
    ],
)
def test_the_verdict_is_the_librarys(response: str, label: object, reward: int) -> None:
    assert grade_math_verify(response, label) == reward


@pytest.mark.parametrize("label", [None, ""])
def test_a_label_that_cannot_be_read_is_an_error_and_no_zero(label: object) -> None:
    with pytest.raises(DataError, match="cannot read the label"):
        grade_math_verify(r"\boxed{3}", label)

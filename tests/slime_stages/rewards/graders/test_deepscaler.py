from __future__ import annotations

import pytest

from slime_stages.errors import DataError
from slime_stages.rewards.graders.deepscaler import grade_deepscaler


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"<think>\boxed{1}</think> \boxed{2}", "2", 1),
        (r"<think>\boxed{2}</think> \boxed{1}", "2", 0),
        (r"a</think>\boxed{1}</think>\boxed{2}", 2, 1),
        (r"\boxed{2}", "2", 0),
        (r"\boxed{1}###Response\boxed{2}###Response\boxed{3}", "2", 1),
        (r"</think> 2", "2", 0),
        (r"</think> \boxed{0.5}", r"\boxed{\frac{1}{2}}", 1),
        (r"</think> \boxed{}", "", 0),
        (r"</think> \boxed{0}", 0, 1),
        (r"</think> \boxed{2.5}", 2.5, 1),
    ],
)
def test_only_the_box_behind_the_thinking_counts(response: str, label: object, reward: int) -> None:
    assert grade_deepscaler(response, label) == reward


def test_a_label_that_is_neither_text_nor_number_is_refused() -> None:
    with pytest.raises(DataError, match="needs a label that is text or a number, not None"):
        grade_deepscaler(r"</think> \boxed{1}", None)

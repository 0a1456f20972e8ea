from __future__ import annotations

import pytest

from slime_stages.rewards.graders.boxed import last_boxed, unboxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{\frac{2}{3}} end", r"\frac{2}{3}"),
        (r"\boxed{}", ""),
        (r"\boxed{1} \boxed 2", None),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed 3 {4}", None),
        (r"\fbox{3}", None),
        ("no box", None),
    ],
)
def test_the_last_box_counts_and_needs_balanced_braces(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


def test_a_label_may_be_boxed() -> None:
    assert unboxed("3") == "3"
    assert unboxed(r"it is \boxed{3}") == "3"
    assert unboxed(r"\boxed 3") is None

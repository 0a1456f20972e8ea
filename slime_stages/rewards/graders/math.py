r"""Reward type `math`: is the answer in the last `\boxed{…}` equal to the label?

As in slime, but for the integer label 0, which slime takes for "no label" and always marks wrong: here it is an
answer like any other. No label at all (None or empty text) stays wrong.
"""

from __future__ import annotations

from slime_stages.rewards.graders import mathd, symbolic
from slime_stages.rewards.graders.boxed import last_boxed, unboxed


def grade_math(response: str, label: object) -> int:
    """1 if the boxed answer has the label's text or value, else 0."""
    answer = last_boxed(response)
    truth = None if label is None else unboxed(str(label))
    return int(answer is not None and is_right(answer, truth))


def is_right(answer: str, truth: str | None) -> bool:
    """Whether two LaTeX answers are the same text or the same value; never if there is no truth."""
    return bool(truth) and (mathd.is_same_text(answer, str(truth)) or symbolic.is_equal(answer, str(truth)))

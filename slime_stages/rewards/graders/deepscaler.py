r"""Reward type `deepscaler`: like `math`, for models that think first: only what follows the thinking counts."""

from __future__ import annotations

from slime_stages.errors import DataError
from slime_stages.rewards.graders.boxed import last_boxed, unboxed
from slime_stages.rewards.graders.math import is_right


def grade_deepscaler(response: str, label: object) -> int:
    """1 if the box behind the last `</think>` (or the first `###Response`) holds the label, else 0."""
    answer_part = _after_thinking(response)
    answer = None if answer_part is None else last_boxed(answer_part)
    if answer is None or label == "":
        return 0
    if not isinstance(label, str | int | float):
        raise DataError(
            f"reward type `deepscaler` needs a label that is text or a number, not {label!r}",
            hint="check --label-key and the prompt file",
        )
    return int(is_right(answer, unboxed(str(label))))


def _after_thinking(response: str) -> str | None:
    if "</think>" in response:
        return response.rpartition("</think>")[2]
    parts = response.split("###Response")
    return parts[1] if len(parts) > 1 else None

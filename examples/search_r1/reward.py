"""Exact match, as SQuAD has it: without case, punctuation and articles."""

from __future__ import annotations

import re
from typing import Any

from slime.rollout.rm_hub.f1 import normalize_answer

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


async def reward(args: Any, sample: Any, **kwargs: Any) -> float:
    """1 if the last answer is one of the label's, else 0. The label is `{"target": [...]}`, or has it inside."""
    answers = ANSWER.findall(sample.response)
    targets = sample.label.get("ground_truth", sample.label)["target"]
    known = {normalize_answer(target) for target in ([targets] if isinstance(targets, str) else targets)}
    return float(bool(answers) and normalize_answer(answers[-1]) in known)

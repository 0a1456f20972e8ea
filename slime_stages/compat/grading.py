"""slime's graders by their names there; what they make of an answer is what our reward types make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from slime_stages.rewards import remote
from slime_stages.rewards.graders import f1, mathd, symbolic
from slime_stages.rewards.graders.boxed import last_boxed
from slime_stages.rewards.graders.dapo import grade_dapo
from slime_stages.rewards.graders.gpqa import grade_gpqa
from slime_stages.rewards.graders.ifbench import grade_ifbench
from slime_stages.rewards.graders.math import grade_math
from slime_stages.sample import Sample

BOX = "\\boxed{"


async def remote_rm(args: Any, sample: Sample) -> Any:
    """What the run's reward server says of a sample."""
    return await remote.ask_server(args, remote.question(sample.prompt, sample.response, sample.label))


def grade_answer_verl(solution_str: str, ground_truth: Any) -> bool:
    return bool(grade_math(solution_str, ground_truth))


def grade_answer_mathd(given_answer: str | None, ground_truth: str | None) -> bool:
    return given_answer is not None and bool(ground_truth) and mathd.is_same_text(given_answer, str(ground_truth))


def grade_answer_sympy(given_answer: str | None, ground_truth: str | None) -> bool:
    return given_answer is not None and bool(ground_truth) and symbolic.is_equal(given_answer, str(ground_truth))


def last_boxed_only_string(string: str) -> str | None:
    r"""The last box as it stands, `\boxed{…}`; None without one."""
    content = last_boxed(string)
    return None if content is None else f"{BOX}{content}}}"


def remove_boxed(s: str) -> str:
    r"""The content of `\boxed{…}`; ValueError for anything else."""
    if not (s.startswith(BOX) and s.endswith("}")):
        raise ValueError(f"{s[:100]!r} is no box")
    return s[len(BOX) : -1]


def compute_score(solution_str: str, ground_truth: Any, strict_box_verify: bool = False, **_: Any) -> dict[str, Any]:
    """The reward of type `dapo`, a dict with `score`, `acc` and `pred`."""
    return dict(grade_dapo(solution_str, ground_truth, strict_box=strict_box_verify))


def f1_score(prediction: str | None, ground_truth: str) -> tuple[float, float, float]:
    """F1, precision and recall of words."""
    score = f1.grade_f1(prediction, ground_truth)
    if prediction is None or not score:
        return 0.0, 0.0, 0.0
    given, truth = f1.normalise(prediction).split(), f1.normalise(ground_truth).split()
    shared = (Counter(given) & Counter(truth)).total()
    return score, shared / len(given), shared / len(truth)


def compute_gpqa_reward(response: str, label: Any, metadata: Mapping[str, Any] | None = None) -> float:
    return grade_gpqa(response, label, dict(metadata or {}))


def compute_ifbench_reward(response: str, label: Any, metadata: Mapping[str, Any] | None = None) -> float:
    """The prompt, where instructions are about it, is the metadata's `prompt_text`."""
    return grade_ifbench(response, "", metadata or {})

"""The reward hub: which function scores a sample, by slime's rules of precedence.

A sample's own `custom_rm_path` comes before the run's, and any custom function before a reward type; the type in
`metadata["rm_type"]` comes before `--rm-type`. With the prefix `boxed_` a type sees only the last boxed answer.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from slime_stages.errors import DataError, UsageError
from slime_stages.plugins import load_function
from slime_stages.rewards.graders.boxed import last_boxed
from slime_stages.rewards.graders.dapo import grade_dapo
from slime_stages.rewards.graders.deepscaler import grade_deepscaler
from slime_stages.rewards.graders.f1 import grade_f1
from slime_stages.rewards.graders.math import grade_math
from slime_stages.rewards.graders.random import grade_random
from slime_stages.sample import Sample

REWARD_SIGNATURE = "reward(args, sample)"
_BOXED_PREFIX = "boxed_"


class Question(NamedTuple):
    """What a reward type gets to see."""

    args: Any
    """The run's settings under slime's names."""
    sample: Sample
    response: str
    """The sample's response, or its last boxed answer."""


REWARD_TYPES: dict[str, Callable[[Question], Any]] = {
    "dapo": lambda question: grade_dapo(question.response, question.sample.label),
    "deepscaler": lambda question: grade_deepscaler(question.response, question.sample.label),
    "f1": lambda question: grade_f1(question.response, question.sample.label),
    "math": lambda question: grade_math(question.response, question.sample.label),
    "random": lambda question: grade_random(_coin_seed(question.args, question.sample)),
}


async def async_rm(args: Any, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """The reward of one sample, a number or a dict; a list of samples goes to `batched_async_rm`."""
    if isinstance(sample, list):
        return await batched_async_rm(args, sample, **kwargs)
    if path := sample.custom_rm_path or getattr(args, "custom_rm_path", None):
        return await _call(path, args, sample, kwargs)
    reward_type = reward_type_of(args, sample)
    grade = find_reward_type(reward_type)
    is_boxed = reward_type.startswith(_BOXED_PREFIX)
    response = (last_boxed(sample.response) or "") if is_boxed else sample.response
    answer = grade(Question(args, sample, response))
    return await answer if inspect.isawaitable(answer) else answer


async def batched_async_rm(args: Any, samples: list[Sample], **kwargs: Any) -> list[Any]:
    """The rewards of samples that belong together: the siblings of one execution, or (`--group-rm`) a whole group.

    The run's custom function gets the list in one call; otherwise each sample is scored on its own.
    """
    path = getattr(args, "custom_rm_path", None)
    if not path:
        return list(await asyncio.gather(*(async_rm(args, sample, **kwargs) for sample in samples)))
    rewards = await _call(path, args, samples, kwargs)
    if not hasattr(rewards, "__len__") or isinstance(rewards, dict | str) or len(rewards) != len(samples):
        raise DataError(
            f"`{path}` got a list of {len(samples)} samples and returned {str(rewards)[:200]}",
            hint="given a list of samples, a reward function returns a list with one reward for each",
        )
    return list(rewards)


def reward_type_of(args: Any, sample: Sample) -> str:
    """The reward type that scores a sample without a custom function; empty if none is set."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return str(metadata.get("rm_type") or getattr(args, "rm_type", None) or "").strip()


def find_reward_type(reward_type: str) -> Callable[[Question], Any]:
    """The function behind a reward type, with or without `boxed_`; UsageError if there is none."""
    name = reward_type.removeprefix(_BOXED_PREFIX)
    if name in REWARD_TYPES:
        return REWARD_TYPES[name]
    if not reward_type:
        raise UsageError(
            "no reward function: neither `rm_type` nor `custom_rm_path` is set, nor `rm_type` in the prompt's metadata",
            hint=f"--rm-type with one of {', '.join(REWARD_TYPES)}, or --custom-rm-path package.module.function",
        )
    close = difflib.get_close_matches(name, REWARD_TYPES, n=1)
    raise UsageError(
        f"unknown reward type `{reward_type}`, known are {', '.join(REWARD_TYPES)}, each also with `{_BOXED_PREFIX}`",
        hint=f"did you mean `{close[0]}`?" if close else "--custom-rm-path package.module.function",
    )


def warm_up(args: Any) -> None:
    """Import what this run's reward types need, so that forked workers start with it."""
    if getattr(args, "custom_rm_path", None):
        return
    grade_math("\\boxed{2x+\\frac{2}{3}}", "2(x+1/3)")


async def _call(path: str, args: Any, sample: Any, kwargs: dict[str, Any]) -> Any:
    """Call a custom function, whether it is `def` or `async def`."""
    reward = load_function(path, like=REWARD_SIGNATURE)(args, sample, **kwargs)
    return await reward if inspect.isawaitable(reward) else reward


def _coin_seed(args: Any, sample: Sample) -> str | None:
    """One coin for each sample of a seeded run, so that scoring again gives the same rewards."""
    seed = getattr(args, "rollout_seed", None)
    return None if seed is None or sample.index is None else f"{seed}:{sample.index}"

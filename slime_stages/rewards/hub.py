"""The reward hub: which function scores a sample, by slime's rules of precedence.

A sample's own `custom_rm_path` comes before the run's, and any custom function before a reward type; the type in
`metadata["rm_type"]` comes before `--rm-type`. With the prefix `boxed_` a type sees only the last boxed answer;
so does `boxed_remote_rm`, whose server slime sends the whole response. Types that want a box get it with its braces,
where slime takes them away and then finds no box.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slime_stages.errors import DataError, SlimeStagesError, UsageError
from slime_stages.plugins import load_function
from slime_stages.rewards import remote
from slime_stages.rewards.graders.boxed import last_boxed
from slime_stages.rewards.graders.code import grade_code
from slime_stages.rewards.graders.dapo import grade_dapo
from slime_stages.rewards.graders.deepscaler import grade_deepscaler
from slime_stages.rewards.graders.f1 import grade_f1
from slime_stages.rewards.graders.gpqa import grade_gpqa
from slime_stages.rewards.graders.ifbench import grade_ifbench
from slime_stages.rewards.graders.math import grade_math
from slime_stages.rewards.graders.math_verify import grade_math_verify
from slime_stages.rewards.graders.random import grade_random
from slime_stages.rewards.sandbox import Limits
from slime_stages.sample import Sample

REWARD_SIGNATURE = "reward(args, sample)"
_BOXED_PREFIX = "boxed_"
_PLAIN_FIELDS = ("index", "prompt", "response", "label", "metadata", "status", "trace")
"""What is looked at of a sample that a built-in type scores in a worker."""
_PROGRAM_BYTES = 2 << 30
_WARMING = (
    ("2x+\\frac{2}{3}", "2(x+1/3)"),
    ("3\\sqrt{5}", "\\sqrt{45}"),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
    ("\\frac{2\\pi}{3}", "\\frac{2}{3}\\pi"),
    ("7\\pi", "5\\pi"),
    ("(x-2)(x+3)", "x^2+x-6"),
    ("x^2-5x+6", "x^2-6x+5"),
    ("2^{10}", "1025"),
    ("(3,4]", "(3, 5]"),
)
"""Answers whose comparison makes sympy import and remember what every later one needs, a quarter of a second in all."""


class Question(NamedTuple):
    """What a reward type gets to see."""

    args: Any
    """The run's settings under slime's names."""
    sample: Sample
    response: str
    """The sample's response, or its last boxed answer."""

    @property
    def metadata(self) -> dict[str, Any]:
        return self.sample.metadata if isinstance(self.sample.metadata, dict) else {}


REWARD_TYPES: dict[str, Callable[[Question], Any]] = {
    "code": lambda question: grade_code(
        question.response, question.sample.label, question.metadata, _program_limits(question.args)
    ),
    "dapo": lambda question: grade_dapo(question.response, question.sample.label),
    "deepscaler": lambda question: grade_deepscaler(question.response, question.sample.label),
    "f1": lambda question: grade_f1(question.response, question.sample.label),
    "gpqa": lambda question: grade_gpqa(question.response, question.sample.label, question.metadata),
    "ifbench": lambda question: grade_ifbench(
        question.response, _prompt_text(question.sample.prompt), question.metadata
    ),
    "math": lambda question: grade_math(question.response, question.sample.label),
    "math_verify": lambda question: grade_math_verify(question.response, question.sample.label),
    "random": lambda question: grade_random(_coin_seed(question.args, question.sample)),
    remote.REMOTE: lambda question: remote.ask_server(
        question.args, remote.question(question.sample.prompt, question.response, question.sample.label)
    ),
}


async def async_rm(args: Any, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """The reward of one sample, a number or a dict; a list of samples goes to `batched_async_rm`."""
    if isinstance(sample, list):
        return await batched_async_rm(args, sample, **kwargs)
    if path := sample.custom_rm_path or getattr(args, "custom_rm_path", None):
        return await _call(path, args, sample, kwargs)
    answer = _graded(args, sample)
    return await answer if inspect.isawaitable(answer) else answer


async def batched_async_rm(args: Any, samples: list[Sample], **kwargs: Any) -> list[Any]:
    """The rewards of samples that belong together: the siblings of one execution, or (`--group-rm`) a whole group.

    The run's custom function gets in one call, as a list, those that have no function of their own, which slime passes
    over; each other sample is scored by itself.
    """
    path = getattr(args, "custom_rm_path", None)
    is_alone = [not path or bool(sample.custom_rm_path) for sample in samples]
    alone = [sample for sample, by_itself in zip(samples, is_alone, strict=True) if by_itself]
    shared = [sample for sample, by_itself in zip(samples, is_alone, strict=True) if not by_itself]
    each = iter(await asyncio.gather(*(async_rm(args, sample, **kwargs) for sample in alone)))
    together = iter(await _called_with_list(path, args, shared, kwargs) if path and shared else [])
    return [next(each if by_itself else together) for by_itself in is_alone]


async def _called_with_list(path: str, args: Any, samples: list[Sample], kwargs: dict[str, Any]) -> list[Any]:
    rewards = await _call(path, args, samples, kwargs)
    if not hasattr(rewards, "__len__") or isinstance(rewards, dict | str) or len(rewards) != len(samples):
        raise DataError(
            f"`{path}` got a list of {len(samples)} samples and returned {str(rewards)[:200]}",
            hint="given a list of samples, a reward function returns a list with one reward for each",
        )
    return list(rewards)


def plain_grader(args: Any, sample: Sample) -> Callable[[], Any] | None:
    """What scores the sample without waiting for anything; None for functions of the user and for servers."""
    if not _is_plain(args, sample.custom_rm_path, sample.metadata):
        return None
    return functools.partial(_graded, args, sample)


def is_plain(args: Any, sample: Mapping[str, Any]) -> bool:
    """Whether a sample (as a dict) has a plain grader: one that gives the same again, and leaves nothing behind."""
    return _is_plain(args, sample["custom_rm_path"], sample["metadata"])


def plain_view(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Of a sample (as a dict) that has a plain grader, what that looks at: its tokens need not travel."""
    return {name: sample[name] for name in _PLAIN_FIELDS}


def remote_questions(args: Any, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """What to ask the run's reward server, if it scores each of these samples (as dicts) and no function does."""
    if getattr(args, "custom_rm_path", None) or not getattr(args, "rm_url", None):
        return None
    questions: list[dict[str, Any]] = []
    for sample in samples:
        reward_type = _type_of(args, sample["metadata"])
        if sample["custom_rm_path"] or bare_type(reward_type) != remote.REMOTE:
            return None
        questions.append(remote.question(sample["prompt"], _seen(reward_type, sample["response"]), sample["label"]))
    return questions


def reward_type_of(args: Any, sample: Sample) -> str:
    """The reward type that scores a sample without a custom function; empty if none is set."""
    return _type_of(args, sample.metadata)


def bare_type(reward_type: str) -> str:
    """A reward type without `boxed_`."""
    return reward_type.strip().removeprefix(_BOXED_PREFIX)


def find_reward_type(reward_type: str) -> Callable[[Question], Any]:
    """The function behind a reward type, with or without `boxed_`; UsageError if there is none."""
    name = bare_type(reward_type)
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
    if getattr(args, "rm_url", None):
        import aiohttp  # noqa: F401
    name = bare_type(str(getattr(args, "rm_type", None) or ""))
    if name == "math_verify":
        grade_math_verify("\\boxed{x+1}", "1+x")
    elif name == "ifbench":
        with contextlib.suppress(SlimeStagesError):  # raised again, and reported, by each task
            grade_ifbench("a", "", {"instruction_id_list": ["count:word_count_range"]})
    elif name in ("math", "deepscaler", ""):  # without a type the prompts name their own
        for answer, label in _WARMING:
            grade_math(f"\\boxed{{{answer}}}", label)


async def _call(path: str, args: Any, sample: Any, kwargs: dict[str, Any]) -> Any:
    """Call a custom function, whether it is `def` or `async def`."""
    reward = load_function(path, like=REWARD_SIGNATURE)(args, sample, **kwargs)
    return await reward if inspect.isawaitable(reward) else reward


def _graded(args: Any, sample: Sample) -> Any:
    reward_type = reward_type_of(args, sample)
    return find_reward_type(reward_type)(Question(args, sample, _seen(reward_type, sample.response)))


def _seen(reward_type: str, response: str) -> str:
    """What a type sees of a response; a `boxed_` type nothing where there is no box."""
    name = bare_type(reward_type)
    if name == reward_type or name == "deepscaler":  # it looks for a box itself, behind the thinking
        return response
    answer = last_boxed(response)
    if answer is None:
        return ""
    return f"\\boxed{{{answer}}}" if name in ("math", "math_verify") else answer


def _coin_seed(args: Any, sample: Sample) -> str | None:
    """One coin for each sample of a seeded run, so that scoring again gives the same rewards."""
    seed = getattr(args, "rollout_seed", None)
    return None if seed is None or sample.index is None else f"{seed}:{sample.index}"


def _type_of(args: Any, metadata: Any) -> str:
    own = metadata.get("rm_type") if isinstance(metadata, dict) else None
    return str(own or getattr(args, "rm_type", None) or "").strip()


def _is_plain(args: Any, custom_rm_path: str | None, metadata: Any) -> bool:
    if custom_rm_path or getattr(args, "custom_rm_path", None):
        return False
    return bare_type(_type_of(args, metadata)) != remote.REMOTE


def _program_limits(args: Any) -> Limits:
    """Of all tests of a sample together; what is left of its deadline is for starting, comparing and killing."""
    seconds = getattr(args, "code_timeout", None) or float(getattr(args, "reward_timeout", 60.0)) / 2
    return Limits(seconds=seconds, memory_bytes=_PROGRAM_BYTES, isolation=getattr(args, "code_sandbox", "namespaces"))


def _prompt_text(prompt: Any) -> str:
    """The words of the user, where the prompt is a chat."""
    if isinstance(prompt, str):
        return prompt
    texts = [message.get("content") for message in prompt if message.get("role") == "user"]
    return "\n".join(text for text in texts if isinstance(text, str))

"""What goes into the reward pool and what comes out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slime_stages.trace.handles import dump_trace
from slime_stages.trace.spans import SCORING, span_that_ended


class RewardStatus(StrEnum):
    """How scoring a task ended; there is a reward only for `scored`."""

    SCORED = "scored"
    TIMEOUT = "timeout"
    """No answer within the deadline: the worker was killed."""
    OOM = "oom"
    """The worker and its children held more memory than allowed, or the kernel killed it for memory."""
    ERROR = "error"
    """The reward function raised, returned what is no reward, or took its worker down."""


SPENT = b"!"


class RewardTimeout(Exception):
    """No reward within the deadline, from somebody who could tell why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTask:
    """What one call of a reward function scores."""

    key: str
    """The caller's name for the task; comes back on its outcome."""

    samples: list[dict[str, Any]]
    """`Sample.to_dict()` of each sample."""

    is_list: bool
    """Whether the samples belong together and go to the function as one list; else there is exactly one."""

    def __post_init__(self) -> None:
        assert self.is_list or len(self.samples) == 1, f"{len(self.samples)} samples, but not a list"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOutcome:
    """What became of a task."""

    key: str
    """The task's."""

    rewards: list[float | dict[str, Any] | None]
    """One for each sample; all None unless the status is `scored`."""

    status: RewardStatus
    """How it ended."""

    message: str | None
    """Why there is no reward, with the exception or the value; None if scored."""

    seconds: float
    """Wall clock in the worker, imports of its first task excluded."""

    traces: list[str | None]
    """For each sample, what was recorded of its scoring, as JSON; None for one that is not traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What the supervisor process needs to know."""

    args: dict[str, Any]
    """The run's settings under slime's names, handed to reward functions as a namespace."""

    workers: int
    """Tasks scored at a time, each in a process of its own."""

    timeout_seconds: float
    """Deadline of one task."""

    memory_bytes: int | None
    """What a worker and its children may hold together; None: no limit."""

    tasks_per_worker: int
    """A worker is replaced after so many tasks."""

    requests: int
    """Samples asked of a reward server at a time, by all of the pool."""


def answer_of(
    status: RewardStatus,
    rewards: list[float | dict[str, Any]] | None,
    message: str | None,
    seconds: float,
    *,
    is_spent: bool,
    traces: list[str | None] | None = None,
) -> dict[str, Any]:
    """An outcome as it travels. A worker that is spent must not score another task."""
    return {
        "rewards": rewards,
        "status": status.value,
        "message": message,
        "seconds": seconds,
        "is_spent": is_spent,
        "traces": traces,
    }


def scoring_trace(trace: dict[str, Any] | None, answer: dict[str, Any]) -> str | None:
    """Of a sample whose worker could not record it, or that no worker scored; None if it is not traced."""
    if trace is None:
        return None
    return dump_trace(span_that_ended(SCORING, seconds=answer["seconds"], attrs={"status": answer["status"]}))


def report_of(answers: Sequence[tuple[int, dict[str, Any]]]) -> bytes:
    """Answers with the numbers of their tasks, as they travel. The supervisor reads the first byte: is it spent?"""
    is_spent = any(answer["is_spent"] for _, answer in answers)
    return (SPENT if is_spent else b".") + json.dumps(answers).encode()


def answers_of(report: bytes) -> list[tuple[int, dict[str, Any]]]:
    """The inverse of `report_of`."""
    return [(number, answer) for number, answer in json.loads(report[1:])]


def check_reward(value: Any) -> float | dict[str, Any]:
    """A reward as it is stored: a finite number, or a dict of JSON values; ValueError for anything else."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"a reward dict must have text keys, not {_shown(value)}")
        try:
            return dict(json.loads(json.dumps(value, allow_nan=False, default=_as_plain)))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"a reward dict must hold finite JSON values, not {_shown(value)}") from error
    plain = _as_plain(value) if not isinstance(value, int | float) and hasattr(value, "item") else value
    try:
        number = float(plain) if isinstance(plain, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a reward must be a finite number or a dict, not {_shown(value)}")
    return number


def _as_plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's own; TypeError if it is none."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{type(value).__name__} is no JSON value") from error


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 4000 else "of thousands of digits"
    return f"{type(value).__name__} {text if len(text) <= 200 else text[:200] + '…'}"

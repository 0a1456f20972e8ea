"""What goes into the reward pool and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class RewardStatus(StrEnum):
    """How scoring a task ended; there is a reward only for `scored`."""

    SCORED = "scored"
    TIMEOUT = "timeout"
    """No answer within the deadline: the worker was killed."""
    OOM = "oom"
    """The worker and its children held more memory than allowed, or the kernel killed it for memory."""
    ERROR = "error"
    """The reward function raised, returned what is no reward, or took its worker down."""


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

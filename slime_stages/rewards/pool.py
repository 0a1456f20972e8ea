"""`RewardPool`: score samples in worker processes that can be killed, each task within a deadline.

Only a killed process is a timeout: a thread or a signal stops neither a regular expression nor a C library. So every
worker is a session of its own, and it is killed with all that it started. A failed task has a status and a message,
and never a reward of 0.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

from slime_stages.errors import InternalError, RetryableError, SlimeStagesError, UsageError
from slime_stages.rewards import hub, wire
from slime_stages.rewards.remote import RemoteTask
from slime_stages.rewards.tasks import (
    PoolSettings,
    RewardOutcome,
    RewardStatus,
    RewardTask,
    answers_of,
    scoring_trace,
)
from slime_stages.rewards.units import Ahead, Outstanding, Packed

__all__ = ["RewardOutcome", "RewardPool", "RewardStatus", "RewardTask"]

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from slime_stages.rewards.supervisor import main; main(int(sys.argv[1]))"
)
_END_SECONDS = 10.0
_NAMED = 20
"""Tasks that an error names."""


class RewardPool:
    """A pool of reward workers; close it, or use it in a `with` statement.

    Deadlines and memory limits hold whether or not anybody is reading outcomes. What reward functions print goes
    to stderr. Linux only.
    """

    def __init__(
        self,
        args: dict[str, Any],
        *,
        workers: int,
        timeout_seconds: float,
        memory_bytes: int | None,
        tasks_per_worker: int,
        requests: int = 64,
    ) -> None:
        """Start the workers, without waiting for them; `args` are the settings that reward functions get to see."""
        limits = {"workers": workers, "timeout_seconds": timeout_seconds, "tasks_per_worker": tasks_per_worker}
        limits |= {"requests": requests} | ({} if memory_bytes is None else {"memory_bytes": memory_bytes})
        for name, value in limits.items():
            if value <= 0:
                raise UsageError(f"the reward pool's {name} must be more than 0, not {value}")
        self._args = SimpleNamespace(**args)
        self._outstanding = Outstanding(workers=workers, requests=requests if args.get("rm_url") else 0)
        self._ready: deque[RewardOutcome] = deque()
        self._connection, theirs = socket.socketpair()
        self._inbox = wire.Inbox(self._connection)
        with theirs:
            self._process = _start_supervisor(theirs)
        settings = PoolSettings(
            args=args,
            workers=workers,
            timeout_seconds=timeout_seconds,
            memory_bytes=memory_bytes,
            tasks_per_worker=tasks_per_worker,
            requests=requests,
        )
        self._send(0, pickle.dumps(settings))

    def score(self, tasks: Iterable[RewardTask], *, seconds: float | None = None) -> Iterator[RewardOutcome]:
        """The outcome of each task, in the order in which they end.

        Takes tasks only as workers become free: at most two units for each worker are held at a time (three of quick
        tasks), and as many tasks for a reward server as may be on their way. A unit is one task, or some quick ones.
        RetryableError if not all have ended within so many seconds.
        """
        for kept in (self._outstanding, self._ready):
            kept.clear()  # of an iteration that was given up
        deadline = None if seconds is None else time.monotonic() + seconds
        ahead = Ahead(tasks, self._packed)
        while True:
            while unit := self._outstanding.next_unit(ahead):
                self._hand_over(unit)
            if not self._outstanding and not self._ready:
                return
            if (outcome := self._receive_by(deadline)) is None:
                raise _out_of_time(seconds, itertools.chain(self._outstanding.tasks(), ahead.rest()))
            yield outcome

    def submit(self, task: RewardTask) -> None:
        """Hand over a task, whoever else waits for outcomes; `receive` returns its own in time."""
        self._hand_over([self._packed(task)])

    def receive(self) -> RewardOutcome:
        """Wait for the next outcome. Raises once the pool is closed."""
        while not self._ready:
            message = self._inbox.next()
            if message is None:
                raise self._supervisor_is_gone()
            for number, answer in answers_of(message[1]):
                if (task := self._outstanding.pop(number, answer["seconds"])) is not None:
                    self._ready.append(_outcome(task, answer))
        return self._ready.popleft()

    def close(self) -> None:
        """Kill the workers and everything they started."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an outcome
        self._connection.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel then kills the workers
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _packed(self, task: RewardTask) -> Packed:
        questions = hub.remote_questions(self._args, task.samples)
        if questions is None:
            if is_plain := not task.is_list and hub.is_plain(self._args, task.samples[0]):
                task = replace(task, samples=[hub.plain_view(task.samples[0])])
            return Packed(task, pickle.dumps(task), is_remote=False, is_plain=is_plain)
        body = RemoteTask(self._args.rm_url, questions).packed()
        return Packed(task, body, is_remote=True, is_plain=False)

    def _hand_over(self, unit: Sequence[Packed]) -> None:
        numbers = self._outstanding.add(unit)  # before it is sent: its answer may be read by another thread
        if unit[0].is_remote:
            self._send(numbers[0], wire.REMOTE + unit[0].body)
            return
        messages = (wire.pack(number, packed.body) for number, packed in zip(numbers, unit, strict=True))
        self._send(numbers[0], wire.LOCAL + b"".join(messages))

    def _receive_by(self, deadline: float | None) -> RewardOutcome | None:
        """The next outcome, or None if the time is over; nothing can be received after that."""
        if deadline is not None:
            if (left := deadline - time.monotonic()) <= 0:
                return None
            self._connection.settimeout(left)
        try:
            outcome = self.receive()
        except TimeoutError:
            return None
        self._connection.settimeout(None)
        return outcome

    def _send(self, number: int, body: bytes) -> None:
        try:
            wire.send(self._connection, number, body)
        except ConnectionError as error:
            raise self._supervisor_is_gone() from error

    def _supervisor_is_gone(self) -> SlimeStagesError:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1)
        if code is not None and code < 0:
            return RetryableError(f"the reward pool's supervisor was killed by signal {-code}", hint="run it again")
        return InternalError(f"the reward pool's supervisor ended with exit code {code}", hint="stderr says why")


def _outcome(task: RewardTask, answer: dict[str, Any]) -> RewardOutcome:
    rewards = answer["rewards"]
    return RewardOutcome(
        key=task.key,
        rewards=[None] * len(task.samples) if rewards is None else rewards,
        status=RewardStatus(answer["status"]),
        message=answer["message"],
        seconds=answer["seconds"],
        traces=answer["traces"] or [scoring_trace(sample["trace"], answer) for sample in task.samples],
    )


def _out_of_time(seconds: float | None, left: Iterable[RewardTask]) -> RetryableError:
    """Counts what is left without holding it: it may be most of a large shard."""
    keys: list[str] = []
    count = 0
    for task in left:
        keys += [task.key] if len(keys) <= _NAMED else []
        count += len(task.samples)
    named = ", ".join(keys[:_NAMED]) + (", …" if len(keys) > _NAMED else "")
    return RetryableError(
        f"{count} samples were not scored within {seconds:g} s: {named}",
        hint="type it again, with a longer --reward-shard-timeout, a shorter --reward-timeout or more --reward-workers",
    )


def _start_supervisor(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Its stdout is our stderr: our stdout carries manifest paths."""
    descriptor = connection.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(descriptor), *sys.path],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=[descriptor],
        start_new_session=True,
        env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **os.environ},
    )

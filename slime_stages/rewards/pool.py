"""`RewardPool`: score samples in worker processes that can be killed, each task within a deadline.

Only a killed process is a timeout: a thread or a signal stops neither a regular expression nor a C library. So every
worker is a session of its own, and it is killed with all that it started. A failed task has a status and a message,
and never a reward of 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

from slime_stages.errors import InternalError, RetryableError, SlimeStagesError, UsageError
from slime_stages.rewards import wire
from slime_stages.rewards.tasks import PoolSettings, RewardOutcome, RewardStatus, RewardTask

__all__ = ["RewardOutcome", "RewardPool", "RewardStatus", "RewardTask"]

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from slime_stages.rewards.supervisor import main; main(int(sys.argv[1]))"
)
_END_SECONDS = 10.0


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
    ) -> None:
        """Start the workers, without waiting for them; `args` are the settings that reward functions get to see."""
        limits = {"workers": workers, "timeout_seconds": timeout_seconds, "tasks_per_worker": tasks_per_worker}
        limits |= {} if memory_bytes is None else {"memory_bytes": memory_bytes}
        for name, value in limits.items():
            if value <= 0:
                raise UsageError(f"the reward pool's {name} must be more than 0, not {value}")
        self._outstanding: dict[int, RewardTask] = {}
        self._next_number = 0
        self._capacity = 2 * workers
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = _start_supervisor(theirs)
        settings = PoolSettings(
            args=args,
            workers=workers,
            timeout_seconds=timeout_seconds,
            memory_bytes=memory_bytes,
            tasks_per_worker=tasks_per_worker,
        )
        self._send(pickle.dumps(settings))

    def score(self, tasks: Iterable[RewardTask]) -> Iterator[RewardOutcome]:
        """The outcome of each task, in the order in which they end.

        Takes tasks only as workers become free: at most two for each worker are held at a time.
        """
        self._outstanding.clear()  # of an iteration that was given up
        source = iter(tasks)
        is_exhausted = False
        while True:
            while not is_exhausted and len(self._outstanding) < self._capacity:
                task = next(source, None)
                if task is None:
                    is_exhausted = True
                else:
                    self._outstanding[self._send(pickle.dumps(task))] = task
            if not self._outstanding:
                return
            yield self._receive()

    def close(self) -> None:
        """Kill the workers and everything they started."""
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

    def _send(self, body: bytes) -> int:
        self._next_number += 1
        try:
            wire.send(self._connection, self._next_number, body)
        except ConnectionError as error:
            raise self._supervisor_is_gone() from error
        return self._next_number

    def _receive(self) -> RewardOutcome:
        while message := wire.receive(self._connection):
            if (task := self._outstanding.pop(message[0], None)) is not None:
                return _outcome(task, json.loads(message[1]))
        raise self._supervisor_is_gone()

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

"""A reward worker: a forked process that scores tasks one after the other until it is killed.

It runs code that nobody vouches for, so it defends nothing but its answers: a task's exception becomes an outcome,
and a worker that may be spoilt (children left behind, memory gone, an exit called) says so and is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime_stages.errors import SlimeStagesError
from slime_stages.isolation import process_tree
from slime_stages.plugins import load_function
from slime_stages.rewards import hub, wire
from slime_stages.rewards.clock import TaskClock
from slime_stages.rewards.tasks import (
    PoolSettings,
    RewardStatus,
    RewardTask,
    RewardTimeout,
    answer_of,
    check_reward,
    report_of,
)
from slime_stages.sample import Sample
from slime_stages.trace.handles import dump_trace, is_trace
from slime_stages.trace.spans import SCORING, trace_span

_REPORT_SECONDS = 0.05
_QUIET_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_worker(connection: socket.socket, settings: PoolSettings, supervisor: int, clock: TaskClock) -> None:
    """Score what comes over the connection, until it closes."""
    _settle(connection, supervisor)
    args = SimpleNamespace(**settings.args)
    if path := settings.args.get("custom_rm_path"):
        with contextlib.suppress(Exception):  # raised again, and reported, by each task
            load_function(path, like=hub.REWARD_SIGNATURE)
    inbox = wire.Inbox(connection)
    wire.send(connection, 0, b"")
    with asyncio.Runner() as runner:
        while message := inbox.next():
            for report in _reports(runner, args, settings, wire.split(message[1]), clock):
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                wire.send(connection, len(report), report_of(report))
                if report[-1][1]["is_spent"]:
                    return  # what is left of the unit is another worker's


def _reports(
    runner: asyncio.Runner, args: Any, settings: PoolSettings, unit: list[tuple[int, bytes]], clock: TaskClock
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """The answers to a unit of tasks, some at a time; none is held back for long."""
    own_pid, report, reported = os.getpid(), [], time.monotonic()
    for number, task in unit:
        clock.start(number)
        answer = _answer(runner, args, pickle.loads(task))
        if os.getpid() != own_pid:
            return  # a child that the reward function forked and let run on into this loop
        answer["is_spent"] = answer["is_spent"] or _is_large(settings.memory_bytes)
        report.append((number, answer))
        if number == unit[-1][0] or answer["is_spent"] or time.monotonic() - reported > _REPORT_SECONDS:
            yield report
            report, reported = [], time.monotonic()


def _answer(runner: asyncio.Runner, args: Any, task: RewardTask) -> dict[str, Any]:
    started = time.monotonic()
    rewards: list[float | dict[str, Any]] | None = None
    message, is_spent = None, False
    samples: list[Sample] = []
    try:
        samples = [Sample.from_dict(sample) for sample in task.samples]
        with trace_span(samples, SCORING):
            rewards = [check_reward(reward) for reward in _rewards(runner, args, samples, is_list=task.is_list)]
        status = RewardStatus.SCORED
    except RewardTimeout as error:
        status, message = RewardStatus.TIMEOUT, str(error)
    except MemoryError as error:
        status, message, is_spent = RewardStatus.OOM, _describe(error), True
    except BaseException as error:  # reward functions call sys.exit() and cancel their loop, too
        status, message, is_spent = RewardStatus.ERROR, _describe(error), not isinstance(error, Exception)
    is_spent = is_spent or process_tree.has_children()
    traces = [dump_trace(sample.trace["events"]) if is_trace(sample.trace) else None for sample in samples]
    return answer_of(status, rewards, message, time.monotonic() - started, is_spent=is_spent, traces=traces)


def _rewards(runner: asyncio.Runner, args: Any, samples: list[Sample], *, is_list: bool) -> Sequence[Any]:
    """Most built-in types need no event loop, and a round through it costs more than their verdict."""
    if is_list:
        return runner.run(hub.batched_async_rm(args, samples))
    if (grader := hub.plain_grader(args, samples[0])) is not None:
        return [grader()]
    return [runner.run(hub.async_rm(args, samples[0]))]


def _is_large(memory_bytes: int | None) -> bool:
    """Whether it holds so much that the next task would be killed for what this one left."""
    return memory_bytes is not None and process_tree.exceeds_alone(memory_bytes // 2)


def _settle(connection: socket.socket, supervisor: int) -> None:
    """Take leave of the supervisor: own session, own signals, no inherited files, first in line for the kernel."""
    os.setsid()
    process_tree.die_with_parent()
    process_tree.adopt_orphans()
    if os.getppid() != supervisor:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _QUIET_SIGNALS:
        # SLURM signals every process of a job step: what is being scored is finished first. A Python handler,
        # unlike SIG_IGN, does not reach the programs that a reward function starts.
        signal.signal(number, lambda *_: None)
    _mind_forks(connection)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in (0, 1, 2, connection.fileno()):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _mind_forks(connection: socket.socket) -> None:
    """See to it that what a reward function forks neither speaks for the worker nor misses a signal meant for it."""
    masks: list[set[Any]] = []

    def before() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, _QUIET_SIGNALS))

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        connection.close()
        for number in _QUIET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        in_parent()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _describe(error: BaseException) -> str:
    if isinstance(error, SlimeStagesError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:500]}{place}"

"""A reward worker: a forked process that scores tasks one after the other until it is killed.

It runs code that nobody vouches for, so it defends nothing but its answers: a task's exception becomes an outcome,
and a worker that may be spoilt (children left behind, memory gone, an exit called) says so and is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime_stages.errors import SlimeStagesError
from slime_stages.plugins import load_function
from slime_stages.rewards import hub, process_tree, wire
from slime_stages.rewards.tasks import PoolSettings, RewardStatus, RewardTask
from slime_stages.sample import Sample

_QUIET_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_worker(connection: socket.socket, settings: PoolSettings, supervisor: int) -> None:
    """Score what comes over the connection, until it closes."""
    _settle(connection, supervisor)
    args = SimpleNamespace(**settings.args)
    if path := settings.args.get("custom_rm_path"):
        with contextlib.suppress(Exception):  # raised again, and reported, by each task
            load_function(path, like=hub.REWARD_SIGNATURE)
    own_pid = os.getpid()
    wire.send(connection, 0, b"")
    with asyncio.Runner() as runner:
        while message := wire.receive(connection):
            answer = _answer(runner, args, pickle.loads(message[1]))
            if os.getpid() != own_pid:
                return  # a child that the reward function forked and let run on into this loop
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            wire.send(connection, message[0], json.dumps(answer).encode())


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
    if not isinstance(plain, int | float) or not math.isfinite(plain):
        raise ValueError(f"a reward must be a finite number or a dict, not {_shown(value)}")
    return float(plain)


def _answer(runner: asyncio.Runner, args: Any, task: RewardTask) -> dict[str, Any]:
    started = time.monotonic()
    rewards: list[float | dict[str, Any]] | None = None
    message, is_spent = None, False
    try:
        samples = [Sample.from_dict(sample) for sample in task.samples]
        raw = runner.run(hub.batched_async_rm(args, samples) if task.is_list else _score_one(args, samples[0]))
        rewards = [check_reward(reward) for reward in raw]
        status = RewardStatus.SCORED
    except MemoryError as error:
        status, message, is_spent = RewardStatus.OOM, _describe(error), True
    except BaseException as error:  # reward functions call sys.exit() and cancel their loop, too
        status, message, is_spent = RewardStatus.ERROR, _describe(error), not isinstance(error, Exception)
    return {
        "rewards": rewards,
        "status": status.value,
        "message": message,
        "seconds": time.monotonic() - started,
        "is_spent": is_spent or bool(process_tree.children(os.getpid())),
    }


async def _score_one(args: Any, sample: Sample) -> list[Any]:
    return [await hub.async_rm(args, sample)]


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


def _as_plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's own; TypeError if it is none."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{type(value).__name__} is no JSON value") from error


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 200 else text[:200] + '…'}"

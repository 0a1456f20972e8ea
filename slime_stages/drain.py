"""Ending in good order when told to: the first signal of a batch system becomes one exception, at a time that suits.

A stage that leaves nothing half done needs no more: `Drained` ends it where it stands, and the same call does the work
again. One that can use the seconds it has left takes signals as calls (`listening`) and raises `Drained` itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Before a time limit, at a preemption, by a person. SIGCONT, which comes along, needs no handler."""
INTERRUPT = signal.SIGINT
"""Ctrl-C, likewise; once more, it breaks off what the first one has begun to end."""
HEEDED = (*SIGNALS, INTERRUPT)


class Drained(KeyboardInterrupt):
    """The work was broken off on demand; what is committed or journalled stays. The exit code is 75.

    No `Exception`: code that expects failures of any kind lets it pass.
    """

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message or f"drained ({reason}): what is committed stays, the same command does the rest"


@dataclass(slots=True)
class _Drain:
    """The state of this process."""

    reason: str | None = None
    is_delivered: bool = False
    """Somebody knows: nothing is raised any more."""
    is_unwinding: bool = False
    """`Drained` was raised, and whoever it passes ends what is theirs."""
    interrupts: int = 0
    held: int = 0
    """Depth of `uninterrupted` blocks."""
    listener: Callable[[], object] | None = None
    is_disregarded: bool = False
    """Signals say nothing any more."""
    progress: int = 0
    handlers: dict[int, Any] = field(default_factory=dict)
    """What was installed before us; empty while we are not."""


_drain = _Drain()


def install_drain() -> None:
    """Turn the first of `SIGNALS`, or Ctrl-C, into a `Drained` in the main thread. Forks get the handlers from before.

    A second Ctrl-C is a KeyboardInterrupt, but where signals are listened to. One that was blocked until now comes now.
    """
    if _drain.handlers or threading.current_thread() is not threading.main_thread():
        return
    for number in HEEDED:
        if number != INTERRUPT or signal.getsignal(number) is not signal.SIG_IGN:  # as in a shell's background
            _drain.handlers[number] = signal.signal(number, _on_signal)
    atexit.register(_keep_exit_code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)


def drain_reason() -> str | None:
    """Why this process is to end, in a few words; None while it is not."""
    return _drain.reason


def begin_drain(reason: str) -> None:
    """Note a reason other than a signal, for a caller that ends by itself. The first reason stays."""
    _drain.reason = _drain.reason or reason
    _drain.is_delivered = True


def disregard_signals() -> None:
    """For a failure that came first: srun ends a job's other tasks by signals that only follow from it."""
    _drain.reason, _drain.is_disregarded = None, True


def count_progress(count: int = 1) -> None:
    """Note that work was put where the next attempt finds it."""
    _drain.progress += count


def made_progress() -> bool:
    """Whether this process has put anything where the next attempt finds it."""
    return _drain.progress > 0


@contextmanager
def uninterrupted(*, last: bool = False) -> Iterator[None]:
    """For a short write: a signal that comes within the block is raised at its end.

    `last`: the work is done with the block, so that nothing is raised then or later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _drain.held += 1
    try:
        yield
        _drain.is_delivered |= last
    finally:
        _drain.held -= 1
    if _drain.reason and not _drain.is_delivered and not _drain.held:
        _raise(_drain.reason)


@contextmanager
def listening(function: Callable[[], object]) -> Iterator[None]:
    """Within the block every signal calls `function`, in the main thread, and raises nothing, then or later."""
    before, _drain.listener = _drain.listener, function
    try:
        yield
    finally:
        _drain.listener = before


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _drain.is_disregarded:
        return
    _drain.reason = _drain.reason or signal.Signals(number).name
    _drain.interrupts += number == INTERRUPT
    if _drain.listener is not None:
        _drain.is_delivered = True
        _drain.listener()
    elif _drain.held:
        return
    elif not _drain.is_delivered:
        _raise(_drain.reason)
    elif _drain.is_unwinding and number == INTERRUPT and _drain.interrupts > 1:
        raise KeyboardInterrupt


def _raise(reason: str) -> NoReturn:
    _drain.is_delivered = _drain.is_unwinding = True
    raise Drained(reason)


def _keep_exit_code() -> None:
    """What this process exits with is settled, but an interpreter that takes itself down lets go of its handlers."""
    for number in HEEDED:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_IGN)


def _forget_in_fork() -> None:
    """A fork is no stage: whoever made it may end it by a signal."""
    global _drain
    handlers, _drain = _drain.handlers, _Drain()
    for number, handler in handlers.items():
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


os.register_at_fork(after_in_child=_forget_in_fork)

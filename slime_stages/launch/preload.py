"""The process that pays for imports once: it loads what the stages need, then forks a child for each call.

Reads one JSON object a line from stdin, writes one a line to the descriptor in argv[1]. It runs no numerics itself, so
that a fork finds no threads of a math library. It dies with the program that started it, and its children with it.
A signal to end is its children's: the one at work, and all that follow.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

from slime_stages.drain import HEEDED, SIGNALS, begin_drain

MODULES = (
    "slime_stages.launch.run_stage",
    "stages.rollout.run",
    "stages.reward.run",
    "stages.train.preload",
    "stages.train.run",
    "stages.sync.run",
)
"""In the order in which an iteration needs them."""
PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child too, which answers it
    for number in SIGNALS:
        signal.signal(number, _pass_on)
    for module in MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        answers.write(_forked(line) + b"\n")
    for child in _busy:
        os.waitpid(child, 0)


_busy: list[int] = []
"""Children that have answered and may still be writing what the next stage need not wait for."""
_at_work: list[int] = []
"""The child that has not answered yet."""
_told: list[str] = []
"""Names of the signals that came."""


def _pass_on(number: int, frame: object) -> None:
    _told.append(signal.Signals(number).name)
    for child in _at_work:
        os.kill(child, number)


def _forked(line: str) -> bytes:
    """Run a call in a child; its answer, or how it died."""
    from slime_stages.launch.run_stage import StageResult

    _busy[:] = [child for child in _busy if os.waitpid(child, os.WNOHANG)[0] == 0]

    reader, writer = os.pipe()
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)  # here until one can be passed on, there until it can be heeded
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(line, writer, parent)
    _at_work.append(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _at_work.clear()
    if answer:
        _busy.append(child)
        return answer
    _, status = os.waitpid(child, 0)
    signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    how = f"was killed by {signal.Signals(signal_number).name}" if signal_number else f"ended with {status >> 8}"
    return StageResult(exit_code=75 if signal_number else 70, message=f"the stage's process {how}").to_json()


def _child(line: str, writer: int, parent: int) -> None:
    from slime_stages.launch.run_stage import result_of
    from slime_stages.stage import StageCall, finish_deferred

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if _told:
        begin_drain(_told[0])
    die_with_parent(parent)
    # What the stage forks to finish writing must not hold the answer's pipe open.
    unanswered = [writer]

    def let_go() -> None:
        for descriptor in unanswered:
            os.close(descriptor)

    os.register_at_fork(after_in_child=let_go)
    result = result_of(StageCall.from_json(line))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(writer, result.to_json())
    os.close(unanswered.pop())
    finish_deferred()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Rollouts that stream beside the local loop: a process for each shard, which the loop waits for shard by shard."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, Self

import orjson

from slime_stages.errors import InternalError, SlimeStagesError
from slime_stages.launch.local import read_progress
from slime_stages.launch.run_stage import PASSIVE_WAIT, StageResult
from slime_stages.progress import PIPE_VARIABLE
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall

OnStream = Callable[[int, dict[str, Any]], None]
"""Told the shard of a stream, and how far it is with its present iteration."""

POLL_SECONDS = 0.2
END_SECONDS = 60.0
"""For writing a journal and ending engines; then a stream is killed, and what it journalled stays."""


@dataclass(slots=True, kw_only=True)
class Streams:
    """Use as a context manager: what still runs at its end is told to end."""

    run: RunDir
    until: int
    """One past the last iteration that they go on to."""
    on_stream: OnStream | None = None
    """None: each says it in its log."""
    _processes: dict[int, _Stream] = field(default_factory=dict)

    def begin(self, call: StageCall) -> None:
        """Have the shard made from the call's iteration on, unless somebody is at it."""
        shard = call.shard or 0
        if shard not in self._processes or self._processes[shard].process.poll() is not None:
            log = self.run.log_path(f"stream-{shard:05d}")
            log.parent.mkdir(parents=True, exist_ok=True)
            self._processes[shard] = _started(replace(call, until=self.until), log.open("ab"), str(log), self.on_stream)

    def wait_for(self, call: StageCall, is_there: Callable[[], bool]) -> None:
        """Return once the output of the call is there; the error of its stream if that has ended without it."""
        self.begin(call)
        stream = self._processes[call.shard or 0]
        while not is_there():
            if stream.process.poll() is not None and not is_there():
                raise stream.error(call)
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        running = [stream.process for stream in self._processes.values()]
        if kind is not None:
            for process in running:
                process.terminate()
        for process in running:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in self._processes.values():
            stream.answer.close()


@dataclass(frozen=True, slots=True)
class _Stream:
    process: subprocess.Popen[bytes]
    answer: IO[bytes]
    log: str

    def error(self, call: StageCall) -> BaseException:
        """Why it has ended."""
        told = self.answer.read()
        if not told:
            words = f"the process of {call.title} and what follows ended with {self.process.returncode}"
            return InternalError(words, hint=f"tail {self.log}")
        result = StageResult(**orjson.loads(told))
        if result.exit_code == 130:
            return KeyboardInterrupt()
        if not result.exit_code:
            return InternalError(f"the stream of {call.title} ended at {result.manifest}", hint=f"tail {self.log}")
        return SlimeStagesError.with_exit_code(result.exit_code, result.message, hint=result.hint)


def _started(call: StageCall, log: IO[bytes], name: str, on_stream: OnStream | None) -> _Stream:
    answers, theirs = os.pipe()
    passed, environment = [theirs], dict([PASSIVE_WAIT, ("TOKENIZERS_PARALLELISM", "false")]) | os.environ
    if on_stream is not None:
        progress, told = os.pipe()
        passed.append(told)
        environment[PIPE_VARIABLE] = str(told)
        arguments = (progress, partial(on_stream, call.shard or 0))
        threading.Thread(target=read_progress, args=arguments, daemon=True).start()
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "slime_stages.launch.one_call", call.to_json(), str(theirs), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=passed,
            env=environment,
        )
    for descriptor in passed:
        os.close(descriptor)
    return _Stream(process, os.fdopen(answers, "rb"), name)

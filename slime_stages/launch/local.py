"""Stages on this machine, one after the other, in children of one preloaded process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self

import orjson

from slime_stages.drain import Drained, drain_reason, uninterrupted
from slime_stages.errors import InternalError
from slime_stages.launch.run_stage import PASSIVE_WAIT, StageResult
from slime_stages.progress import PIPE_VARIABLE
from slime_stages.stage import BACKGROUND_VARIABLE, StageCall, say

WRITE_OUT_SECONDS = 600.0


class LocalExecutor:
    """Runs stage calls here. Use as a context manager; imports go on in the background from the start."""

    def __init__(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: IO[bytes] | None = None

    def run(self, call: StageCall) -> StageResult:
        """Run one call to its end. A stage that died is a result with its exit code, not an exception.

        A signal is the stage's to end by: `Drained` only once it is through, if it was done before it knew.
        """
        assert self._process is not None
        is_sent = False
        try:
            with uninterrupted():
                self._send(call)
                is_sent = True
            return self._answer()
        except Drained:
            if not is_sent:
                raise
            say(f"{call.title} is told to end, which takes some seconds; Ctrl-C again breaks it off")
            self._process.terminate()  # for a signal that came to this process alone
            result = self._answer()
            if result.exit_code:
                return result
            raise

    def _send(self, call: StageCall) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, and gives no answer either
            self._process.stdin.write(call.to_json().encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self) -> StageResult:
        assert self._process is not None
        assert self._answers is not None
        if answer := self._answers.readline():
            return StageResult(**orjson.loads(answer))
        code = self._process.wait()
        if reason := drain_reason():
            raise Drained(reason)  # it was told as well, before it knew what to do with it
        raise InternalError(
            f"the process that runs the stages ended with {code}", hint="python -m slime_stages.launch.preload 1 0"
        )

    def __enter__(self) -> Self:
        answers, their_answers = os.pipe()
        progress, their_progress = os.pipe()
        defaults = dict([PASSIVE_WAIT, ("TOKENIZERS_PARALLELISM", "false")])
        environment = {**defaults, **os.environ, BACKGROUND_VARIABLE: "1"}
        passed = [their_answers]
        if self._on_progress is not None:
            environment[PIPE_VARIABLE] = str(their_progress)
            passed.append(their_progress)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slime_stages.launch.preload", str(their_answers), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=2,  # stdout is for manifest paths, which the caller prints
            pass_fds=passed,
            env=environment,
        )
        os.close(their_answers)
        os.close(their_progress)
        self._answers = os.fdopen(answers, "rb")
        threading.Thread(target=read_progress, args=(progress, self._on_progress), daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=WRITE_OUT_SECONDS)  # a checkpoint may still be on its way to the disk
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._answers is not None:
            self._answers.close()


def read_progress(descriptor: int, on_progress: Callable[[dict[str, Any]], None] | None) -> None:
    """Pass on what stages say of how far they are, as long as there are any."""
    with os.fdopen(descriptor, "rb") as pipe:
        for line in pipe:
            if on_progress is not None:
                on_progress(json.loads(line))

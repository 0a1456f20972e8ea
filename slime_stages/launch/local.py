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

from slime_stages.errors import InternalError
from slime_stages.launch.run_stage import PASSIVE_WAIT, StageResult
from slime_stages.progress import PIPE_VARIABLE
from slime_stages.stage import BACKGROUND_VARIABLE, StageCall

WRITE_OUT_SECONDS = 600.0


class LocalExecutor:
    """Runs stage calls here. Use as a context manager; imports go on in the background from the start."""

    def __init__(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: IO[bytes] | None = None

    def run(self, call: StageCall) -> StageResult:
        """Run one call to its end. A stage that died is a result with its exit code, not an exception."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._answers is not None
        try:
            self._process.stdin.write(call.to_json().encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            code = self._process.wait()
            raise InternalError(
                f"the process that runs the stages ended with {code}", hint="python -m slime_stages.launch.preload 1 0"
            )
        return StageResult(**orjson.loads(answer))

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

"""An SGLang server as a child: started for a Hugging Face folder, waited for, verified, ended with all it started.

with Engine(Path("weights/000012"), "12", log=Path("sglang.log"), options=EngineOptions()) as engine:
    engine.update_weights(Path("weights/000013"), "13")
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from slime_stages.drain import uninterrupted
from slime_stages.errors import InternalError, MissingInputError, RetryableError, SlimeStagesError
from slime_stages.serving import guard
from slime_stages.serving.failure import explain_failure, is_port_clash, read_log
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.launch import EngineOptions, server_command, server_environment

if TYPE_CHECKING:
    import psutil

POLL_SECONDS = 0.25
STOP_TIMEOUT_SECONDS = 15.0
PORT_ATTEMPTS = 4

Progress = Callable[[float, str], None]
"""Called while the server starts, with the seconds waited and the last line of its log."""


class Engine(EngineHandle):
    """A server that lives as long as the `with` block, and not longer than this process, however that ends."""

    def __init__(
        self,
        model: Path,
        weight_version: str,
        *,
        log: Path,
        options: EngineOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__("")
        self.model = model.resolve()
        self.weight_version = weight_version
        self.log = log
        self.options = options or EngineOptions()
        self.start_seconds = 0.0
        self._progress = progress
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the guard; the server and its processes are below it."""
        assert self._guard is not None, "the engine is not running"
        return self._guard.pid

    def start(self) -> None:
        """Start the server and return once it is healthy with the right weight version."""
        assert self._guard is None, "the engine is running already"
        if not (self.model / "config.json").is_file():
            raise MissingInputError(f"{self.model} holds no config.json", hint=f"ls {self.model}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        for attempt in range(PORT_ATTEMPTS):
            log_start = self.log.stat().st_size if self.log.exists() else 0
            try:
                self._launch()
                self._wait(log_start, started + self.options.start_timeout_seconds)
                break
            except SlimeStagesError:
                self.stop()
                if attempt == PORT_ATTEMPTS - 1 or not is_port_clash(read_log(self.log, log_start)):
                    raise
            except BaseException:
                self.stop()
                raise
        self.start_seconds = time.monotonic() - started

    def stop(self) -> None:
        """End every process of the server; returns when none is left."""
        process, self._guard = self._guard, None
        if process is not None:
            with uninterrupted():
                _end(process)

    def is_alive(self) -> bool:
        """True while the server's process runs, healthy or not."""
        return self._guard is not None and self._guard.poll() is None

    def _launch(self) -> None:
        port = free_port(self.options.host)
        self.url = f"http://{self.options.host}:{port}"
        command = server_command(self.options, self.model, self.weight_version, port)
        environment = server_environment(self.options, self.model)
        with self.log.open("ab") as log, uninterrupted():
            self._guard = _start_guard(command, environment, log)

    def _wait(self, log_start: int, deadline: float) -> None:
        started = reported = time.monotonic()
        while not self._answers():
            assert self._guard is not None
            if (code := self._guard.poll()) is not None:
                raise explain_failure(read_log(self.log, log_start), code, self.log)
            now = time.monotonic()
            if now > deadline:
                waited = f"{now - started:.0f} s"
                last = (read_log(self.log, log_start) or ["nothing"])[-1]
                raise RetryableError(f"the engine is not up after {waited}: {last}", hint=f"less {self.log}")
            if self._progress and now - reported >= 1.0:
                reported = now
                self._progress(now - started, (read_log(self.log, log_start) or [""])[-1])
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            version = self.version()
        except SlimeStagesError:
            return False
        if version != self.weight_version:
            raise InternalError(
                f"{self.url} serves weight version {version}, not {self.weight_version}", hint=f"less {self.log}"
            )
        return self.is_healthy()


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def _start_guard(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, guard.IGNORED)  # until the guard ignores them
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a guard and all below it."""
    processes = _processes_below(process.pid)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _kill_leftovers(processes)


def _processes_below(pid: int) -> list[psutil.Process]:
    import psutil

    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _kill_leftovers(processes: list[psutil.Process]) -> None:
    """What the guard did not end, should it have been killed itself."""
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=2)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(alive, timeout=STOP_TIMEOUT_SECONDS)
    if alive:
        raise InternalError(
            f"processes of the engine do not end: {', '.join(str(process.pid) for process in alive)}",
            hint="they wait in the kernel, often for a GPU or a file system: tell the administrators of the node",
        )

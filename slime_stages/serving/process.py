"""A server program as a child that leaves nothing behind: started under the guard, and ended with all below it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from slime_stages.drain import uninterrupted
from slime_stages.errors import InternalError, RetryableError, SlimeStagesError
from slime_stages.serving import guard
from slime_stages.serving.failure import is_port_clash, read_log

if TYPE_CHECKING:
    import psutil

STOP_TIMEOUT_SECONDS = 15.0
PORT_ATTEMPTS = 4


class GuardedProcess:
    """One program at a time; it lives until `stop`, and not longer than this process, however that ends.

    Any thread may stop it while another starts it.
    """

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_forbidden = False

    @property
    def pid(self) -> int:
        """Of the guard; the program and its processes are below it."""
        assert self._guard is not None, "the program is not running"
        return self._guard.pid

    @property
    def is_started(self) -> bool:
        """True until it is stopped, also if it has ended by itself."""
        return self._guard is not None

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start `command`; what it prints is added to `log`. RetryableError once `forbid` was called."""
        with self._lock:
            if self._is_forbidden:
                raise RetryableError("the server was stopped while it started")
            assert self._guard is None, "the program is running already"
            with log.open("ab") as file, uninterrupted():
                before = signal.pthread_sigmask(signal.SIG_BLOCK, guard.IGNORED)  # until the guard ignores them
                try:
                    self._guard = subprocess.Popen(
                        [sys.executable, "-I", "-S", guard.__file__, *command],
                        stdin=subprocess.PIPE,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=dict(environment),
                        start_new_session=True,
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def exit_code(self) -> int | None:
        """How the program ended; None while it runs. RetryableError if somebody has stopped it."""
        process = self._guard
        if process is None:
            raise RetryableError("the server was stopped while it started")
        return process.poll()

    def is_alive(self) -> bool:
        process = self._guard
        return process is not None and process.poll() is None

    def stop(self) -> None:
        """End every process of the program; returns when none is left."""
        with self._lock:
            process, self._guard = self._guard, None
        if process is not None:
            with uninterrupted():
                _end(process)

    def forbid(self) -> None:
        """Let nobody start it any more, a thread that is about to neither."""
        with self._lock:
            self._is_forbidden = True


class OwnedServer(ABC):
    """A server that lives as long as the `with` block, and not longer than this process, however that ends."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process = GuardedProcess()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the guard; the server and its processes are below it."""
        return self._process.pid

    @abstractmethod
    def start(self, port: int | None = None) -> None:
        """Start it and return once it answers; on `port` again, where one is given."""

    def stop(self) -> None:
        """End every process of the server; returns when none is left."""
        self._process.stop()

    def shut_down(self) -> None:
        """Stop it for good: a thread that starts it now gives up."""
        self._process.forbid()
        self.stop()

    def is_alive(self) -> bool:
        """True while the server's process runs, healthy or not."""
        return self._process.is_alive()

    def _try_ports(self, bring_up: Callable[[int, int], None]) -> None:
        """Have `bring_up(attempt, log_start)` start the server and wait for it, again where a port was taken."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(PORT_ATTEMPTS):
            log_start = self.log.stat().st_size if self.log.exists() else 0
            try:
                bring_up(attempt, log_start)
                return
            except SlimeStagesError:
                self.stop()
                if attempt == PORT_ATTEMPTS - 1 or not is_port_clash(read_log(self.log, log_start)):
                    raise
            except BaseException:
                self.stop()
                raise


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True


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
            f"processes of the server do not end: {', '.join(str(process.pid) for process in alive)}",
            hint="they wait in the kernel, often for a GPU or a file system: tell the administrators of the node",
        )

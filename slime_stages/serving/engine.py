"""An SGLang server as a child: started for a Hugging Face folder, waited for, verified, ended with all it started.

with Engine(Path("weights/000012"), "12", log=Path("sglang.log"), options=EngineOptions()) as engine:
    engine.update_weights(Path("weights/000013"), "13")
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from slime_stages.errors import InternalError, MissingInputError, RetryableError, SlimeStagesError
from slime_stages.serving.failure import explain_failure, is_port_clash, read_log
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.launch import EngineOptions, server_command, server_environment
from slime_stages.serving.process import GuardedProcess, free_port, is_free

__all__ = ["Engine", "EngineOptions", "Progress", "free_port"]

POLL_SECONDS = 0.25
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
        self.ports: dict[str, int] = {}
        """Of what it listens on besides, by the option that says so."""
        self._progress = progress
        self._process = GuardedProcess()

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
        return self._process.pid

    def start(self, port: int | None = None) -> None:
        """Start the server and return once it is healthy with the right weight version; on `port` if that is free."""
        assert not self._process.is_started, "the engine is running already"
        if not (self.model / "config.json").is_file():
            raise MissingInputError(f"{self.model} holds no config.json", hint=f"ls {self.model}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        for attempt in range(PORT_ATTEMPTS):
            log_start = self.log.stat().st_size if self.log.exists() else 0
            try:
                self._launch(port if attempt == 0 and port and is_free(self.options.host, port) else None)
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
        self._process.stop()

    def shut_down(self) -> None:
        """Stop it for good: a thread that starts it now gives up."""
        self._process.forbid()
        self.stop()

    def is_alive(self) -> bool:
        """True while the server's process runs, healthy or not."""
        return self._process.is_alive()

    def _launch(self, port: int | None) -> None:
        options = self.options
        port = port or free_port(options.host)
        self.url = f"http://{options.host}:{port}"
        self.ports = {name: free_port(options.host) for name in options.port_flags}
        command = server_command(options, self.model, self.weight_version, port, ports=self.ports)
        self._process.start(command, server_environment(options, self.model), self.log)

    def _wait(self, log_start: int, deadline: float) -> None:
        started = reported = time.monotonic()
        while not self._answers():
            if (code := self._process.exit_code()) is not None:
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

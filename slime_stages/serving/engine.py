"""An SGLang server as a child: started for a Hugging Face folder, waited for, verified, ended with all it started.

with Engine(Path("weights/000012"), "12", log=Path("sglang.log"), options=EngineOptions()) as engine:
    engine.update_weights(Path("weights/000013"), "13")
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slime_stages.errors import InternalError, MissingInputError, RetryableError, SlimeStagesError
from slime_stages.serving.failure import explain_failure, read_log
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.launch import EngineOptions, server_command, server_environment
from slime_stages.serving.process import OwnedServer, free_port, is_free

__all__ = ["Engine", "EngineOptions", "Progress", "free_port"]

POLL_SECONDS = 0.25

Progress = Callable[[float, str], None]
"""Called while the server starts, with the seconds waited and the last line of its log."""


class Engine(OwnedServer, EngineHandle):
    """An engine of ours."""

    def __init__(
        self,
        model: Path,
        weight_version: str,
        *,
        log: Path,
        options: EngineOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        OwnedServer.__init__(self, log)
        EngineHandle.__init__(self, "")
        self.model = model.resolve()
        self.weight_version = weight_version
        self.options = options or EngineOptions()
        self.start_seconds = 0.0
        self.ports: dict[str, int] = {}
        """Of what it listens on besides, by the option that says so."""
        self._progress = progress

    def start(self, port: int | None = None) -> None:
        """Start the server and return once it is healthy with the right weight version; on `port` if that is free."""
        assert not self._process.is_started, "the engine is running already"
        if not (self.model / "config.json").is_file():
            raise MissingInputError(f"{self.model} holds no config.json", hint=f"ls {self.model}")
        started = time.monotonic()

        def bring_up(attempt: int, log_start: int) -> None:
            self._launch(port if attempt == 0 and port and is_free(self.options.host, port) else None)
            self._wait(log_start, started + self.options.start_timeout_seconds)

        self._try_ports(bring_up)
        self.start_seconds = time.monotonic() - started

    def model_info(self, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """An encoder tells nothing of itself, but loads no other weights than those that it was started with."""
        if not self.options.is_encoder:
            return super().model_info(timeout_seconds=timeout_seconds)
        self.call("GET", "/health", timeout_seconds=timeout_seconds)
        return {"model_path": str(self.model), "weight_version": self.weight_version}

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

"""Stands for E2B's service: its SDK's shape, and commands that run on this machine.

Each call is held against the signature of the SDK that is installed.
"""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import e2b
from e2b.sandbox_async.commands.command import Commands
from e2b.sandbox_async.filesystem.filesystem import Filesystem


class FakeSdk(SimpleNamespace):
    """What `import e2b` gives, with a memory of calls."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            AsyncSandbox=SimpleNamespace(create=self._create),
            SandboxException=e2b.SandboxException,
            ServiceBusyException=e2b.ServiceBusyException,
            CommandExitException=e2b.CommandExitException,
            TimeoutException=e2b.TimeoutException,
        )
        self.folder = folder
        self.created: list[dict[str, Any]] = []
        self.users: list[str | None] = []
        self.killed = 0
        self.failures: list[Exception] = []
        """Raised by the next commands, one each."""

    async def _create(self, **options: Any) -> Any:
        inspect.signature(e2b.AsyncSandbox.create).bind(**options)
        self.created.append(options)
        files = SimpleNamespace(write=self._write, read=self._read)
        return SimpleNamespace(
            sandbox_id="e2b-7", commands=SimpleNamespace(run=self._run), files=files, kill=self._kill
        )

    async def _run(self, *arguments: Any, **options: Any) -> e2b.CommandResult:
        given = inspect.signature(Commands.run).bind(None, *arguments, **options).arguments
        self.users.append(given["user"])
        if self.failures:
            raise self.failures.pop(0)
        try:
            ended = subprocess.run(
                ["bash", "-c", given["cmd"]],
                env=given["envs"],
                cwd=self.folder,
                timeout=given["timeout"],
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise e2b.TimeoutException("context deadline exceeded") from error
        if ended.returncode:
            raise e2b.CommandExitException(ended.stderr, ended.stdout, ended.returncode, None)
        return e2b.CommandResult(ended.stderr, ended.stdout, 0, None)

    async def _write(self, *arguments: Any, **options: Any) -> None:
        given = inspect.signature(Filesystem.write).bind(None, *arguments, **options).arguments
        Path(given["path"]).write_bytes(given["data"])

    async def _read(self, *arguments: Any, **options: Any) -> bytearray:
        given = inspect.signature(Filesystem.read).bind(None, *arguments, **options).arguments
        assert given["format"] == "bytes"
        return bytearray(Path(given["path"]).read_bytes())

    async def _kill(self) -> bool:
        self.killed += 1
        return True

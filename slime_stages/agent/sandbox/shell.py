"""A sandbox whose one skill is to run a program: files go in and out through `sh`, `cat` and `tar` within.

So every path is looked up within, by a process that is shut in: a link there leads nowhere else.
"""

from __future__ import annotations

import json
import shlex
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from slime_stages.agent.sandbox.archive import extract_files
from slime_stages.agent.sandbox.protocol import OUT_OF_TIME, Completed
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import DataError, InternalError

SHELL = ("/bin/sh", "-c", 'if [ -x /bin/bash ]; then exec /bin/bash -c "$0"; fi; exec /bin/sh -c "$0"')
_WRITE = 'mkdir -p -- "$(dirname -- "$0")" && cat > "$0"'
_UNPACK = 'mkdir -p -- "$0" && tar -C "$0" --no-same-owner -xf -'
_PACK = 'tar -C "$0" -cf - .'
TRANSFER_SECONDS = 300.0
_LOGGED_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    code: int | None
    """None: out of time."""
    stdout: bytes
    stderr: bytes
    dropped_bytes: int = 0
    """Of stdout, that are not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to run within."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    """All of it but what an image sets."""
    user: str
    """Where there is more than one."""
    is_idempotent: bool = True
    """Whether it may be run twice."""
    folder: str
    seconds: float
    output_bytes: int
    stdin: IO[bytes] | None = None


class ShellSandbox(ABC):
    """See `Sandbox`."""

    poll_seconds = 0.2

    def __init__(self, settings: SandboxSettings, sandbox_id: str) -> None:
        self.settings = settings
        self.sandbox_id = sandbox_id
        self.workdir = settings.workdir

    @abstractmethod
    async def _start(self) -> None:
        """Make it ready for programs."""

    @abstractmethod
    async def _end(self) -> None:
        """Leave nothing of it; it may not have been started."""

    @abstractmethod
    async def _run(self, program: Program) -> Ended:
        """Run a program within, and kill it with all that it started when its time is up or the caller is cancelled."""

    @abstractmethod
    async def reach(self, url: str) -> str:
        """See `Sandbox`."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = False,
        idempotent: bool = True,
    ) -> Completed:
        """See `Sandbox`. There is one user within; `user` says whose home folder it is."""
        started = time.time()
        words = [*SHELL, cmd] if isinstance(cmd, str) else list(cmd)
        program = self._program(words, user, env or {}, timeout, self.settings.output_bytes)
        ended = await self._run(replace(program, is_idempotent=idempotent))
        killed = f"killed after {timeout:g} s\n" if ended.code is None else ""
        code = OUT_OF_TIME if ended.code is None else ended.code
        completed = Completed(code, _text(ended.stdout), _text(ended.stderr) + killed)
        shown = cmd if isinstance(cmd, str) else shlex.join(cmd)
        self._log(shown, completed, started)
        if check and completed.code != 0:
            raise InternalError(
                f"`{shown[:200]}` in {self.sandbox_id} ended with {completed.code}: {completed.stderr[-1000:].strip()}",
                hint=f"less {self.settings.log}" if self.settings.log else "give the sandbox a log to see all commands",
            )
        return completed

    async def write_file(self, path: str, content: str | bytes | Path, user: str = "root") -> None:
        """See `Sandbox`."""
        with tempfile.TemporaryFile() as file:
            source = content.read_bytes() if isinstance(content, Path) else content
            file.write(source.encode() if isinstance(source, str) else source)
            await self._transfer(_WRITE, path, user, file)

    async def read_file(self, path: str, user: str = "root") -> str:
        """See `Sandbox`."""
        ended = await self._shell('[ ! -f "$0" ] || cat -- "$0"', path, user)
        return _text(ended.stdout) if ended.code == 0 else ""

    async def upload(self, source: Path, path: str) -> None:
        """See `Sandbox`."""
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                archive.add(source, arcname=".")
            await self._transfer(_UNPACK, path, "root", file)

    async def download(self, path: str, target: Path) -> None:
        """See `Sandbox`."""
        extract_files(await self._pack(path), target)

    async def _pack(self, path: str) -> bytes:
        ended = await self._transfer(_PACK, path, "root")
        if ended.dropped_bytes:
            self._refuse_more_than_allowed(path, len(ended.stdout) + ended.dropped_bytes)
        return ended.stdout

    def _refuse_more_than_allowed(self, path: str, size: int) -> None:
        if size > self.settings.disk_bytes:
            raise DataError(
                f"{path} in {self.sandbox_id} has {size >> 20} MiB, more than the {self.settings.disk_bytes >> 20} "
                "allowed",
                hint="download a smaller folder, or give the sandbox more `disk_bytes`",
            )

    async def _transfer(self, script: str, path: str, user: str, stdin: IO[bytes] | None = None) -> Ended:
        ended = await self._shell(script, path, user, stdin)
        if ended.code != 0:
            reason = _text(ended.stderr).strip() or f"code {ended.code}"
            raise DataError(
                f"{path} in {self.sandbox_id} cannot be transferred: {reason[-500:]}", hint="is it within reach?"
            )
        return ended

    async def _shell(self, script: str, path: str, user: str, stdin: IO[bytes] | None = None) -> Ended:
        if stdin is not None:
            stdin.flush()
            stdin.seek(0)
        words = ["/bin/sh", "-c", script, path]
        # Twice: half of it is kept for the beginning.
        return await self._run(self._program(words, user, {}, TRANSFER_SECONDS, 2 * self.settings.disk_bytes, stdin))

    def _program(
        self,
        words: Sequence[str],
        user: str,
        env: Mapping[str, str],
        seconds: float,
        output_bytes: int,
        stdin: IO[bytes] | None = None,
    ) -> Program:
        environment = {**environment_of(user), **dict(self.settings.env), **env}
        return Program(
            arguments=words,
            environment=environment,
            user=user,
            folder=self.workdir,
            seconds=seconds,
            output_bytes=output_bytes,
            stdin=stdin,
        )

    def _log(self, command: str, completed: Completed, started: float) -> None:
        if self.settings.log is None:
            return
        self.settings.log.parent.mkdir(parents=True, exist_ok=True)
        line = {
            "sandbox_id": self.sandbox_id,
            "started": started,
            "seconds": round(time.time() - started, 3),
            "command": command[:_LOGGED_CHARACTERS],
            "code": completed.code,
            "stdout": completed.stdout[-_LOGGED_CHARACTERS:],
            "stderr": completed.stderr[-_LOGGED_CHARACTERS:],
        }
        with self.settings.log.open("a") as file:
            file.write(json.dumps(line) + "\n")


def environment_of(user: str) -> dict[str, str]:
    """What every command finds, whoever it is run for."""
    home = "/root" if user == "root" else f"/home/{user}"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"HOME": home, "USER": user, "PATH": path, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}


def _text(content: bytes) -> str:
    return content.decode(errors="replace")

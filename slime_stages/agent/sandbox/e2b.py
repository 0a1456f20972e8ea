"""A sandbox at E2B, or at a server that speaks its protocol, through its own SDK."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from slime_stages.agent.sandbox.e2b_command import Command
from slime_stages.agent.sandbox.e2b_service import Service
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import TRANSFER_SECONDS, Ended, Program, ShellSandbox
from slime_stages.errors import SlimeStagesError, UsageError
from slime_stages.isolation.marks import KILL_MARKED, MARK

IMAGE_KEY = "SLIME_AGENT_SANDBOX_IMAGE_METADATA_KEY"
"""Servers that start any image take its name as metadata, under the key that this variable holds."""
LIFETIME = "SLIME_AGENT_SANDBOX_LIFETIME_SEC"
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
_NO_LIMIT = 0
"""The server's own limit kills the first process alone, and would close the output of daemons, too."""


class E2BSandbox(ShellSandbox):
    """See `Sandbox`. A server ends it after its lifetime, whatever becomes of this process."""

    poll_seconds = 5.0

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings, f"e2b-{secrets.token_hex(4)}")
        if settings.binds:
            raise UsageError("a sandbox at E2B sees no path of this machine", hint="upload what it needs")
        self._service = Service(self.sandbox_id)
        self._remote: Any = None

    async def _start(self) -> None:
        key, image = os.environ.get(IMAGE_KEY), self.settings.image
        lifetime = int(float(os.environ.get(LIFETIME, self.settings.lifetime_seconds)))
        only_once = str(uuid.uuid4())

        async def create() -> None:
            self._remote = await self._service.sdk.AsyncSandbox.create(
                template=None if key else image,
                metadata={key: image} if key and image else None,
                timeout=lifetime,
                allow_internet_access=self.settings.network == "host",
                idempotency_key=only_once,
            )

        await self._service.call(create)
        self.sandbox_id = self._service.name = self._remote.sandbox_id
        await self._do("mkdir", "-p", self.workdir)

    async def _end(self) -> None:
        if self._remote is not None:
            await self._service.call(self._remote.kill)

    async def _do(self, *words: str) -> None:
        """Have a program run that leaves nothing behind, and works from anywhere."""
        line = shlex.join(words)
        await self._service.call(lambda: self._remote.commands.run(line, user="root", cwd="/"))

    async def _run(self, program: Program) -> Ended:
        content = program.stdin.read() if program.stdin is not None else None
        mark = secrets.token_hex(8)
        may_run = False

        async def attempt() -> Ended:
            nonlocal may_run
            if may_run:
                await self._kill(mark)  # the server ends no command whose connection was lost
            try:
                return await self._attempt(program, content, mark)
            except Exception as error:
                may_run = not self._service.was_refused(error)
                raise

        return await self._service.call(attempt, is_idempotent=program.is_idempotent)

    async def _attempt(self, program: Program, content: bytes | None, mark: str) -> Ended:
        command, handle, code = Command(program, mark), None, None
        try:
            async with asyncio.timeout(program.seconds) as limit:
                stdin = await self._send(content, program)
                handle = await self._remote.commands.run(
                    command.line(stdin),
                    background=True,
                    envs={MARK: mark},
                    user=program.user,
                    cwd=program.folder,
                    on_stdout=command.take_stdout,
                    on_stderr=command.take_stderr,
                    timeout=_NO_LIMIT,
                    retain_output=False,
                )
                code = await command.end(handle)
        except TimeoutError:
            if not limit.expired():
                raise
            await self._kill(mark)
        except asyncio.CancelledError:
            with suppress(SlimeStagesError):
                await asyncio.shield(self._kill(mark))
            raise
        finally:
            if handle is not None:
                await handle.disconnect()
        return command.ended(code)

    async def _send(self, content: bytes | None, program: Program) -> str | None:
        if content is None:
            return None
        name = f"/tmp/.stdin-{secrets.token_hex(8)}"
        await self._remote.files.write(name, content, user=program.user, request_timeout=program.seconds)
        return name

    async def _kill(self, mark: str) -> None:
        await self._do("sh", "-c", KILL_MARKED, mark)

    async def _pack(self, path: str) -> bytes:
        """Text is all that a command's output can be, so it goes by a file."""
        name = f"/tmp/.archive-{secrets.token_hex(8)}"
        try:
            packed = await self._transfer(f'tar -C "$0" -cf {name} . && wc -c < {name}', path, "root")
            self._refuse_more_than_allowed(path, int(packed.stdout))
            read = self._remote.files.read
            return bytes(
                await self._service.call(
                    lambda: read(name, format="bytes", user="root", request_timeout=TRANSFER_SECONDS)
                )
            )
        finally:
            await self._do("rm", "-f", name)

    async def reach(self, url: str) -> str:
        """See `Sandbox`."""
        if urlsplit(url).hostname in _LOOPBACK:
            raise UsageError(
                f"a sandbox at E2B cannot reach {url}",
                hint="ADAPTER_PUBLIC_HOST=the name of this machine that it can reach",
            )
        return url

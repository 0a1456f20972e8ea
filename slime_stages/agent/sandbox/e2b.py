"""A sandbox at E2B, or at a server that speaks its protocol, through its own SDK."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slime_stages.agent.sandbox.archive import extract_files
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import Ended, Program, ShellSandbox
from slime_stages.errors import MissingInputError, RetryableError, UsageError

Result = TypeVar("Result")

IMAGE_KEY = "SLIME_AGENT_SANDBOX_IMAGE_METADATA_KEY"
"""Servers that start any image take its name as metadata, under the key that this variable holds."""
LIFETIME = "SLIME_AGENT_SANDBOX_LIFETIME_SEC"
RETRIES = "SLIME_AGENT_SANDBOX_RPC_RETRIES"
_DEFAULT_RETRIES = 6
_LONGEST_PAUSE = 32.0
_FINAL = ("does not exist", "STOPPED state", "was not found")
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")


class E2BSandbox(ShellSandbox):
    """See `Sandbox`. A server ends it after its lifetime, whatever becomes of this process."""

    poll_seconds = 5.0

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings, f"e2b-{secrets.token_hex(4)}")
        if settings.binds:
            raise UsageError("a sandbox at E2B sees no path of this machine", hint="upload what it needs")
        self._sdk = _load_sdk()
        self._retries = int(os.environ.get(RETRIES, _DEFAULT_RETRIES))
        self._remote: Any = None

    async def _start(self) -> None:
        key, image = os.environ.get(IMAGE_KEY), self.settings.image
        lifetime = int(float(os.environ.get(LIFETIME, self.settings.lifetime_seconds)))

        async def create() -> None:
            self._remote = await self._sdk.AsyncSandbox.create(
                template=None if key else image,
                metadata={key: image} if key and image else None,
                timeout=lifetime,
                allow_internet_access=self.settings.network == "host",
            )

        await self._retry(create, is_idempotent=True)
        self.sandbox_id = self._remote.sandbox_id

    async def _end(self) -> None:
        if self._remote is not None:
            await self._retry(self._remote.kill, is_idempotent=True)

    async def _run(self, program: Program) -> Ended:
        line = shlex.join(program.arguments)
        if program.stdin is not None:
            name = f"/tmp/.stdin-{secrets.token_hex(8)}"
            content = program.stdin.read()
            await self._retry(lambda: self._remote.files.write(name, content, user=program.user), is_idempotent=True)
            line = f"{line} < {name}; code=$?; rm -f {name}; exit $code"

        async def run() -> Ended:
            try:
                result = await self._remote.commands.run(
                    line,
                    envs=dict(program.environment),
                    user=program.user,
                    cwd=program.folder,
                    timeout=program.seconds,
                )
            except self._sdk.CommandExitException as error:
                result = error
            except self._sdk.TimeoutException as error:
                if type(error) is not self._sdk.TimeoutException:  # its subclasses tell of lost connections
                    raise
                return Ended(code=None, stdout=b"", stderr=b"")
            return Ended(code=result.exit_code, stdout=result.stdout.encode(), stderr=result.stderr.encode())

        return await self._retry(run, is_idempotent=program.is_idempotent)

    async def download(self, path: str, target: Path) -> None:
        """See `Sandbox`. Text is all that a command's output can be, so it goes by a file."""
        name = f"/tmp/.archive-{secrets.token_hex(8)}"
        await self.exec(["tar", "-C", path, "-cf", name, "."], check=True)
        content = await self._retry(
            lambda: self._remote.files.read(name, format="bytes", user="root"), is_idempotent=True
        )
        await self.exec(["rm", "-f", name])
        extract_files(bytes(content), target)

    async def reach(self, url: str) -> str:
        """See `Sandbox`."""
        if urlsplit(url).hostname in _LOOPBACK:
            raise UsageError(
                f"a sandbox at E2B cannot reach {url}",
                hint="ADAPTER_PUBLIC_HOST=the name of this machine that it can reach",
            )
        return url

    async def _retry(self, call: Callable[[], Awaitable[Result]], *, is_idempotent: bool) -> Result:
        """Try again while it may help: after errors of the connection, and of the service if it is not a final one."""
        for attempt in range(self._retries + 1):
            try:
                return await call()
            except (self._sdk.SandboxException, self._sdk.ServiceBusyException, OSError) as error:
                if not is_idempotent or attempt == self._retries or any(word in str(error) for word in _FINAL):
                    raise RetryableError(
                        f"E2B, sandbox {self.sandbox_id}: {type(error).__name__}: {error}", hint="is E2B_API_KEY valid?"
                    ) from error
                await asyncio.sleep(random.uniform(0, min(_LONGEST_PAUSE, 2.0**attempt)))
        raise AssertionError("unreachable")


def _load_sdk() -> Any:
    try:
        import e2b
    except ImportError as error:
        raise MissingInputError("a sandbox at E2B needs its SDK", hint="pip install e2b") from error
    return e2b

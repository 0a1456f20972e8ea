"""A sandbox in Apptainer, from a SIF file or a sandbox folder.

It is an instance, into which every command is sent. What is written within goes to memory and away; how much that
may be is the administrator's setting `sessiondir max size`. Memory and processes are limited by the job alone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, suppress

from slime_stages.agent.sandbox.capture import Capture
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import Ended, Program, ShellSandbox
from slime_stages.errors import MissingInputError, RetryableError, UsageError
from slime_stages.isolation import process_tree

_BINARIES = ("apptainer", "singularity")
_START_SECONDS = 300.0
_DRAIN_SECONDS = 0.2
_STOP_WHEN_ALONE = 'timeout "$2" cat > /dev/null; exec "$0" instance stop --force "$1"'
"""An instance is a daemon, which outlives whoever started it. This waits for the end of that one, or of its time."""


class ApptainerSandbox(ShellSandbox):
    """See `Sandbox`."""

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings, f"apptainer-{secrets.token_hex(4)}")
        if settings.image is None:
            raise UsageError(
                "an Apptainer sandbox needs an image", hint="a SIF file, or a folder of `apptainer build --sandbox`"
            )
        if not os.path.exists(settings.image):
            raise MissingInputError(
                f"there is no image {settings.image}", hint="apptainer pull IMAGE.sif docker://NAME"
            )
        self._binary = _binary()
        self._stopper: subprocess.Popen[bytes] | None = None

    async def _start(self) -> None:
        words = [self._binary, "instance", "start", *self._options(), str(self.settings.image), self.sandbox_id]
        with tempfile.TemporaryFile() as messages:
            # Before the instance: it must not be missing for a moment.
            self._stopper = _start_stopper(self._binary, self.sandbox_id, self.settings.lifetime_seconds)
            process = await asyncio.create_subprocess_exec(
                *words, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages
            )
            async with asyncio.timeout(_START_SECONDS):
                code = await process.wait()
            messages.seek(0)
            text = messages.read().decode(errors="replace").strip()
        if code != 0:
            raise RetryableError(f"`{' '.join(words)}` ended with {code}: {text[-1000:]}", hint="type it here")

    async def _end(self) -> None:
        if self._stopper is not None:
            assert self._stopper.stdin is not None
            self._stopper.stdin.close()
            await asyncio.to_thread(self._stopper.wait)

    def _options(self) -> list[str]:
        words = ["--containall", "--cleanenv", "--no-home", "--writable-tmpfs", "--no-privs"]
        words += [] if self.settings.network == "host" else ["--net", "--network", "none"]
        for bind in self.settings.binds:
            words += ["--bind", f"{bind.source}:{bind.target}:{'rw' if bind.writable else 'ro'}"]
        return words

    async def _run(self, program: Program) -> Ended:
        words = [self._binary, "exec", "--cleanenv", "--pwd", program.folder]
        for name, value in program.environment.items():
            words += ["--env", f"{name}={value}"]
        with ExitStack() as stack:
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            captures = [Capture(descriptor, program.output_bytes) for descriptor in (out, err)]
            for capture in captures:
                stack.callback(capture.close)
            process = await asyncio.create_subprocess_exec(
                *words,
                f"instance://{self.sandbox_id}",
                *program.arguments,
                stdin=program.stdin or subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                start_new_session=True,
            )
            os.close(out_end)
            os.close(err_end)
            code = await _wait(process, program.seconds)
            await asyncio.wait([capture.ended for capture in captures], timeout=_DRAIN_SECONDS)
        stdout, stderr = captures
        return Ended(code=code, stdout=stdout.content(), stderr=stderr.content(), dropped_bytes=stdout.dropped_bytes)

    async def reach(self, url: str) -> str:
        """See `Sandbox`."""
        if self.settings.network == "none":
            raise UsageError(
                f"programs in an Apptainer sandbox without a network cannot reach {url}",
                hint='network="host", or a local sandbox, which lets this one service in',
            )
        return url


async def _wait(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process_tree.kill_tree(process.pid)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5)
    return code if code >= 0 else 128 - code


def _start_stopper(binary: str, name: str, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _STOP_WHEN_ALONE, binary, name, f"{seconds:.0f}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _binary() -> str:
    for name in _BINARIES:
        if path := shutil.which(name):
            return path
    raise UsageError("neither apptainer nor singularity is in PATH", hint="module load apptainer")

"""A sandbox in Apptainer, from a SIF file or a sandbox folder.

It is an instance, into which every command is sent. What is written within goes to memory and away. Where Apptainer
works without setuid, this user's rights in the instance limit that, as `visit.restrict` says; where it is installed
setuid, the administrator's `sessiondir max size` holds, and nothing of this machine is reached without its network.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace

from slime_stages.agent.sandbox.apptainer_instance import Instance, wait_or_kill
from slime_stages.agent.sandbox.capture import Capture
from slime_stages.agent.sandbox.forward import Forward
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import Ended, Program, ShellSandbox
from slime_stages.errors import MissingInputError, RetryableError, UsageError
from slime_stages.isolation import marks, programs, visit
from slime_stages.isolation.limits import hold_to_limits

_DRAIN_SECONDS = 0.2
_NOTICE_SECONDS = 1.0
"""In which an instance that is stopped is gone, after the first of its commands."""
_WATCH_SECONDS = 0.25
_SCRATCH = ("/root", "/home/agent")


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
        if os.path.isdir(settings.image) and not os.path.exists(f"{settings.image}/.singularity.d/actions/start"):
            raise UsageError(
                f"{settings.image} is a folder that Apptainer did not make, so that no instance starts from it",
                hint=f"apptainer build --sandbox NEW {settings.image}, or a local sandbox, which takes it as it is",
            )
        self._instance = Instance(self.sandbox_id, settings)
        self._deadline = 0.0
        self._sent: set[int] = set()
        """Processes outside, each of which has sent a program in."""
        self._watcher: asyncio.Task[None] | None = None
        self._said: list[str] = []
        self._forwards: dict[str, Forward] = {}
        self._listening = asyncio.Lock()

    async def _start(self) -> None:
        self._instance.prepare()
        self._deadline = time.monotonic() + self.settings.lifetime_seconds
        await self._instance.start(_SCRATCH)
        if not await self._has_workdir():
            await self._instance.stop()
            await self._instance.start((*_SCRATCH, self.workdir))
        await self._restrict()
        self._watcher = asyncio.create_task(self._watch())

    async def _has_workdir(self) -> bool:
        """Whether it can be worked in, made if need be: not where the image is another user's."""
        make = self._program(["/bin/sh", "-c", 'mkdir -p "$0" && [ -w "$0" ]', self.workdir], "root", {}, 60, 1000)
        return (await self._run(replace(make, folder="/"))).code == 0

    async def _restrict(self) -> None:
        limits = {"disk_bytes": self.settings.disk_bytes, "file_count": self.settings.file_count}
        try:
            await asyncio.to_thread(visit.restrict, self._instance.first, **limits)
        except OSError as error:
            if os.geteuid() == 0:  # who may give the kernel orders, from within too
                raise UsageError(
                    f"root's instance {self.sandbox_id} cannot be kept from the kernel's controls: {error}",
                    hint="run as another user",
                ) from error

    async def _end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        for forward in self._forwards.values():
            forward.close()
        await self._instance.end()

    async def _run(self, program: Program) -> Ended:
        mark = secrets.token_hex(8)
        with ExitStack() as stack:
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            captures = [Capture(descriptor, program.output_bytes) for descriptor in (out, err)]
            for capture in captures:
                stack.callback(capture.close)
            process = await asyncio.create_subprocess_exec(
                *programs.WITHOUT_KEYS,
                *self._instance.entry(program),
                stdin=program.stdin or subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                env=self._instance.environment({**program.environment, marks.MARK: mark}),
                start_new_session=True,
            )
            os.close(out_end)
            os.close(err_end)
            self._sent.add(process.pid)
            stack.callback(self._sent.discard, process.pid)
            code = await _end_of(process, program.seconds, mark)
            await asyncio.wait([capture.ended for capture in captures], timeout=_DRAIN_SECONDS)
        if code and await self._is_gone():
            raise self._gone()
        stdout, stderr = captures
        return Ended(code=code, stdout=stdout.content(), stderr=stderr.content(), dropped_bytes=stdout.dropped_bytes)

    async def reach(self, url: str) -> str:
        """See `Sandbox`. The port is one of the instance's own network; what comes in is handed on by this process."""
        if self.settings.network == "host":
            return url
        async with self._listening:
            if url not in self._forwards:
                try:
                    listener = await asyncio.to_thread(visit.listen, self._instance.first)
                except OSError as error:
                    raise UsageError(
                        f"programs in an Apptainer sandbox without a network cannot reach {url}: {error}",
                        hint='network="host", or a local sandbox, which lets this one service in',
                    ) from error
                self._forwards[url] = await Forward(url).start(listener)
        return self._forwards[url].url

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await asyncio.to_thread(
                hold_to_limits,
                lambda: self._instance.processes(tuple(self._sent)),
                process_count=self.settings.process_count,
                memory_bytes=self.settings.memory_bytes,
                say=self._said.append,
            )

    async def _is_gone(self) -> bool:
        """Or goes, where its time is up."""
        deadline = time.monotonic() + _NOTICE_SECONDS if time.monotonic() >= self._deadline else 0.0
        while (is_there := self._instance.is_there()) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return not is_there

    def _gone(self) -> RetryableError:
        is_late = time.monotonic() >= self._deadline
        reason = f"its time of {self.settings.lifetime_seconds:g} s is up" if is_late else "killed from outside"
        return RetryableError(
            "; ".join((f"the sandbox {self.sandbox_id} is gone: {reason}", *self._said[-1:])),
            hint="more `lifetime_seconds`, `memory_bytes` or `process_count`, if it is one of these",
        )


async def _end_of(process: asyncio.subprocess.Process, seconds: float, mark: str) -> int | None:
    """The code of a program that was sent in; None if its time is up, when all that it started is killed."""
    try:
        code = await wait_or_kill(process, seconds)
    except asyncio.CancelledError:
        marks.kill_marked(mark)
        raise
    if code is None:
        await asyncio.to_thread(marks.kill_marked, mark)
    return code

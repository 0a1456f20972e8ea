"""A sandbox on this machine, made of user namespaces or by bubblewrap, for people without any rights on it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress

from slime_stages.agent.sandbox.capture import Capture
from slime_stages.agent.sandbox.forward import Forward
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import Ended, Program, ShellSandbox
from slime_stages.errors import MissingInputError, RetryableError, UsageError
from slime_stages.isolation import bubblewrap, guard
from slime_stages.isolation.enclosure import Enclosure

_START_SECONDS = 60.0
_DRAIN_SECONDS = 0.2
"""For what is left in a pipe when its program has ended; a daemon may hold the other end for ever."""
_NOTICE_SECONDS = 0.5
"""In which a guard notices that the first process within has ended."""
_KILLED = 128 + signal.SIGKILL
_SCRATCH = ("/tmp", "/var/tmp", "/root", "/home/agent")


class LocalSandbox(ShellSandbox):
    """See `Sandbox`; all of it is gone when this process is, by whatever signal."""

    def __init__(self, settings: SandboxSettings, ways: tuple[guard.Way, ...] = guard.WAYS) -> None:
        super().__init__(settings, f"local-{secrets.token_hex(4)}")
        self._ways = ways
        self._guard: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._messages = os.memfd_create("messages")
        self._listening = asyncio.Lock()
        self._forwards: dict[str, Forward] = {}

    async def _start(self) -> None:
        given = [bind.source for bind in self.settings.binds]
        for path in (*given, *([self.settings.image] if self.settings.image else [])):
            if not os.path.exists(path):
                raise MissingInputError(
                    f"a sandbox cannot show {path}: it is not there", hint="correct its image or binds"
                )
        refused = []
        for way in self._ways:
            if way == "bubblewrap" and not bubblewrap.is_installed():
                refused.append("bubblewrap: not installed")
                continue
            if await self._enter(way):
                return
            refused.append(f"{way}: {self._message()}")
        raise UsageError(
            f"this machine does not let a program be shut in: {'; '.join(refused)}", hint=guard.restrictions()
        )

    async def _enter(self, way: guard.Way) -> bool:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.ftruncate(self._messages, 0)
        with theirs:
            self._guard = await asyncio.to_thread(guard.start, _enclosure(self.settings), way, theirs, self._messages)
        self._control.setblocking(False)
        try:
            async with asyncio.timeout(_START_SECONDS):
                if await asyncio.get_running_loop().sock_recv(self._control, 64) == b"ready":
                    return True
        except (TimeoutError, ConnectionError):
            pass
        await self._leave()
        return False

    async def _leave(self) -> None:
        if self._control is not None:
            _hang_up(self._control)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.wait)

    async def _end(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        await self._leave()
        os.close(self._messages)

    async def _run(self, program: Program) -> Ended:
        with ExitStack() as stack:
            report, theirs = socket.socketpair()
            stack.callback(_hang_up, report)
            report.setblocking(False)
            with theirs:
                captures = self._send(program, theirs, stack)
            code = await self._wait(report, program.seconds)
            _hang_up(report)
            await asyncio.wait([capture.ended for capture in captures], timeout=_DRAIN_SECONDS)
        stdout, stderr = captures
        return Ended(code=code, stdout=stdout.content(), stderr=stderr.content(), dropped_bytes=stdout.dropped_bytes)

    def _send(self, program: Program, report: socket.socket, stack: ExitStack) -> list[Capture]:
        command = {
            "arguments": list(program.arguments),
            "environment": dict(program.environment),
            "folder": program.folder,
        }
        request = os.memfd_create("request")
        stack.callback(os.close, request)
        with open(request, "w", closefd=False) as file:
            json.dump(command, file)
        os.lseek(request, 0, os.SEEK_SET)
        nothing = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, nothing)
        stdin = nothing if program.stdin is None else program.stdin.fileno()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        captures = [Capture(descriptor, program.output_bytes) for descriptor in (out, err)]
        for capture in captures:
            stack.callback(capture.close)
        try:
            descriptors = [request, stdin, out_end, err_end, report.fileno()]
            assert self._control is not None
            socket.send_fds(self._control, [b"run"], descriptors)
        except OSError as error:
            raise self._gone() from error
        finally:
            os.close(out_end)
            os.close(err_end)
        return captures

    async def _wait(self, report: socket.socket, seconds: float) -> int | None:
        """The code that is reported; None when the time is up. Closing `report` kills the program."""
        try:
            async with asyncio.timeout(seconds):
                answer = await asyncio.get_running_loop().sock_recv(report, 16)
        except TimeoutError:
            return None
        except ConnectionError:
            answer = b""
        if answer:
            return int(answer)
        if await self._has_ended():
            raise self._gone()
        return _KILLED

    async def _has_ended(self) -> bool:
        """Whether the sandbox is gone, or goes, and not only the program and those that watched it."""
        assert self._guard is not None
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._guard.wait, _NOTICE_SECONDS)
            return True
        return False

    async def reach(self, url: str) -> str:
        """See `Sandbox`. The port is one of the sandbox's own network; what comes in is handed on by this process."""
        if self.settings.network == "host":
            return url
        async with self._listening:
            if url not in self._forwards:
                self._forwards[url] = await Forward(url).start(await self._listener())
        return self._forwards[url].url

    async def _listener(self) -> socket.socket:
        """A socket that listens on a port of the sandbox's network."""
        assert self._control is not None
        try:
            self._control.settimeout(_START_SECONDS)
            self._control.send(b"listen")
            _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, self._control, 64, 1)
            self._control.setblocking(False)
            return socket.socket(fileno=descriptors[0])
        except (OSError, IndexError) as error:
            raise self._gone() from error

    def _gone(self) -> RetryableError:
        return RetryableError(
            f"the sandbox {self.sandbox_id} is gone: {self._message() or 'killed from outside'}",
            hint="more `lifetime_seconds`, `memory_bytes` or `process_count`, if it is one of these",
        )

    def _message(self) -> str:
        return os.pread(self._messages, 2000, 0).decode(errors="replace").strip()


def _hang_up(end: socket.socket) -> None:
    """Closing alone tells the other end nothing while a fork of this process holds a copy."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _enclosure(settings: SandboxSettings) -> Enclosure:
    bound = {bind.target for bind in settings.binds}
    has_workdir = settings.image is not None and os.path.isdir(f"{settings.image}/{settings.workdir}")
    scratch = (*_SCRATCH, *(() if has_workdir else (settings.workdir,)))
    return Enclosure(
        image=settings.image,
        binds=settings.binds,
        scratch=tuple(folder for folder in dict.fromkeys(scratch) if folder not in bound),
        scratch_bytes=settings.disk_bytes,
        scratch_files=settings.file_count,
        has_network=settings.network == "host",
        memory_bytes=settings.memory_bytes,
        process_count=settings.process_count,
        seconds=settings.lifetime_seconds,
    )

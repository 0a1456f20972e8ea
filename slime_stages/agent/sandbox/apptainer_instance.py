"""An instance of Apptainer's: how it is started, looked at, entered and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import Program
from slime_stages.errors import RetryableError, UsageError
from slime_stages.isolation import process_tree, programs

_BINARIES = ("apptainer", "singularity")
_START_SECONDS = 300.0
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")
_KEPT_SETTINGS = ("TMPDIR", "CACHEDIR")
"""What Apptainer hears of this process's environment; others of its own variables show paths of the machine within,
or set variables there."""
_LEFT_OVER = (
    *(
        f"{prefix}_{name}"
        for prefix in ("APPTAINER", "SINGULARITY")
        for name in ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "INSTANCE", "NAME", "NO_EVAL")
    ),
    *("LD_LIBRARY_PATH", "PROMPT_COMMAND", "PS1", "TERM"),
)
"""Variables that it sets within."""
_ENTER = 'export HOME="$1"; shift; exec "$@"'
"""Apptainer lets nobody but its own options set HOME."""
_STOP_WHEN_ALONE = """
trap '' TERM INT HUP USR1 USR2
timeout -s KILL "$3" cat > /dev/null
for attempt in 1 2 3; do
  "$0" --silent instance stop --force "$1" && break
  sleep 1
done
rm -rf "$2"
"""
"""An instance is a daemon, which outlives whoever started it. This waits for the end of that one, or of its time;
attempts are for an instance that is only about to start."""


class Instance:
    """All that Apptainer knows of it is in a folder of its own, so that nothing is left of either."""

    def __init__(self, name: str, settings: SandboxSettings) -> None:
        self.name = name
        self._settings = settings
        self._binary = _binary()
        self._state = ""
        self._stopper: subprocess.Popen[bytes] | None = None
        self.first = 0
        """The first process within, as this machine counts; 0 before the start."""
        self._table = ""

    def prepare(self) -> None:
        """See to its end, before it starts."""
        self._state = tempfile.mkdtemp(prefix=f"{self.name}-")
        words = (self._binary, self.name, self._state, f"{self._settings.lifetime_seconds:.3f}")
        self._stopper = subprocess.Popen(
            ["/bin/sh", "-c", _STOP_WHEN_ALONE, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment({}),
            start_new_session=True,
        )

    async def start(self, scratch: Sequence[str]) -> None:
        """`scratch` are folders within that are made, or hidden by empty ones."""
        words = [*options(self._settings), *(word for folder in scratch for word in ("--scratch", folder))]
        try:
            await self._call("instance", "start", *words, str(self._settings.image), self.name)
        except RetryableError:
            assert self._stopper is not None
            self._stopper.kill()  # it would try for a while to stop what there is not
            raise
        listed = json.loads(await self._call("instance", "list", "--json", self.name))
        self.first = int(listed["instances"][0]["pid"])
        self._table = _process_table(self.first)

    async def stop(self) -> None:
        """To be started again."""
        await self._call("instance", "stop", "--force", self.name)

    async def end(self) -> None:
        """Leave nothing of it, whether or not it was started."""
        if self._stopper is not None:
            assert self._stopper.stdin is not None
            self._stopper.stdin.close()
            await asyncio.to_thread(self._stopper.wait)
            shutil.rmtree(self._state, ignore_errors=True)

    def is_there(self) -> bool:
        return _process_table(self.first) == self._table

    def processes(self, sent: Iterable[int]) -> list[int]:
        """Those within but the first. A program that is `sent` in has a parent outside."""
        families = [process_tree.descendants(pid) for pid in (self.first, *sent)]
        return [pid for family in families for pid in family if _process_table(pid) == self._table]

    def entry(self, program: Program) -> list[str]:
        """The command that runs a program within; `environment` has its variables."""
        left_over = " ".join(name for name in _LEFT_OVER if name not in program.environment)
        words = [self._binary, "--silent", "exec", "--no-privs", "--cleanenv", "--no-eval", "--pwd", program.folder]
        words += [f"instance://{self.name}", "/bin/sh", "-c", f"unset {left_over}; {_ENTER}", "sh"]
        return [*words, program.environment["HOME"], *program.arguments]

    def environment(self, within: Mapping[str, str]) -> dict[str, str]:
        """For a process of Apptainer's; a command line would show the values of variables to everybody."""
        prefix = os.path.basename(self._binary).upper()
        kept = (*_KEPT, *(f"{prefix}_{name}" for name in _KEPT_SETTINGS))
        own = {name: os.environ[name] for name in kept if name in os.environ}
        given = {f"{prefix}ENV_{name}": value for name, value in within.items() if name != "HOME"}
        return {**own, f"{prefix}_CONFIGDIR": self._state, **given}

    async def _call(self, *words: str) -> str:
        """What a command of Apptainer's prints."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = await asyncio.create_subprocess_exec(
                *programs.WITHOUT_KEYS,
                self._binary,
                "--silent",
                *words,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self.environment({}),
                start_new_session=True,
            )
            code = await wait_or_kill(process, _START_SECONDS)
            output, errors = (_content(file) for file in (stdout, stderr))
        if code != 0:
            line = shlex.join((self._binary, *words))
            reason = "took too long" if code is None else f"ended with {code}"
            raise RetryableError(f"`{line}` {reason}: {errors[-1000:]}", hint="type it here")
        return output


async def wait_or_kill(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    """The code of a process; None if its time is up, when it is killed with its descendants."""
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


def options(settings: SandboxSettings) -> list[str]:
    """Of an instance that is shut off from all that is not given."""
    has_network = settings.network == "host"
    words = ["--containall", "--cleanenv", "--no-home", "--writable-tmpfs", "--no-privs"]
    words += ["--no-mount", "sys,hostfs" if has_network else "sys,hostfs,bind-paths"]
    words += [] if has_network else ["--net", "--network", "none"]
    for bind in settings.binds:
        fields = ["type=bind", f"source={bind.source}", f"destination={bind.target}"]
        fields += [] if bind.writable else ["ro"]
        words += ["--mount", ",".join(f'"{field}"' for field in fields)]  # a path may hold a comma or a colon
    return words


def _process_table(pid: int) -> str:
    """Which one a process stands in; empty if it is gone."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def _binary() -> str:
    for name in _BINARIES:
        if path := shutil.which(name):
            return path
    raise UsageError("neither apptainer nor singularity is in PATH", hint="module load apptainer")

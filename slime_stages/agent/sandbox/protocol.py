"""What every sandbox can do, under slime's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

OUT_OF_TIME = 124
"""The code of a command that was killed because its time was up."""


class Completed(NamedTuple):
    """How a command ended."""

    code: int
    """Its exit code, 128 and more for a signal, `OUT_OF_TIME` when it was killed for its time."""
    stdout: str
    """What it wrote; the middle is left out if it is too long."""
    stderr: str


class Sandbox(Protocol):
    """A machine, or what looks like one, for one sample: `async with` starts it and leaves nothing of it behind."""

    sandbox_id: str
    """Names it in logs."""
    workdir: str
    """Where commands start."""
    poll_seconds: float
    """How often `exec_and_wait` looks."""

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
        """Run a line of shell, or a program with its arguments.

        After `timeout` seconds it is killed with all that it started. With `check`, a code other than 0 is an
        error. One that is not `idempotent` is never sent twice, though a remote sandbox may not have heard it.
        """
        ...

    async def write_file(self, path: str, content: str | bytes | Path, user: str = "root") -> None:
        """Write a text, bytes or a file of this machine to a path within; folders are made."""
        ...

    async def read_file(self, path: str, user: str = "root") -> str:
        """The text of a file within; empty if there is none."""
        ...

    async def upload(self, source: Path, path: str) -> None:
        """Copy a folder of this machine into a folder within."""
        ...

    async def download(self, path: str, target: Path) -> None:
        """Copy the files and folders of a folder within to this machine; links and devices are left out."""
        ...

    async def reach(self, url: str) -> str:
        """The URL at which programs within find a service of this machine, and with no network that one alone."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

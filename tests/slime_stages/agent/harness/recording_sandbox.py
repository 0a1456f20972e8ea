"""A sandbox that runs nothing and remembers what it was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from slime_stages.agent.sandbox.protocol import Completed


class RecordingSandbox:
    """Every command succeeds unless `answer` says otherwise; what is started in the background ends at once."""

    sandbox_id, workdir, poll_seconds = "recording", "/workspace", 0.01

    def __init__(self, answer: Callable[[str], int] = lambda _: 0) -> None:
        self._answer = answer
        self.commands: list[str] = []
        self.environments: list[dict[str, str]] = []
        self.files: dict[str, str | bytes | Path] = {}

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
        self.commands.append(cmd if isinstance(cmd, str) else " ".join(cmd))
        self.environments.append(dict(env or {}))
        if "setsid" in self.commands[-1]:
            self.files["/tmp/.agent.done"] = "5\n"
        return Completed(self._answer(self.commands[-1]), "", "")

    async def write_file(self, path: str, content: str | bytes | Path, user: str = "root") -> None:
        self.files[path] = content

    async def read_file(self, path: str, user: str = "root") -> str:
        return str(self.files.get(path, ""))

    async def upload(self, source: Path, path: str) -> None: ...

    async def download(self, path: str, target: Path) -> None: ...

    async def reach(self, url: str) -> str:
        return f"{url}/reached"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

"""Choose a kind of sandbox by name, and open so many of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from slime_stages.agent.sandbox.protocol import Sandbox
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import UsageError
from slime_stages.plugins import load_function

KINDS = {
    "local": "slime_stages.agent.sandbox.local:LocalSandbox",
    "apptainer": "slime_stages.agent.sandbox.apptainer:ApptainerSandbox",
    "e2b": "slime_stages.agent.sandbox.e2b:E2BSandbox",
}


def load_kind(kind: str) -> Callable[[SandboxSettings], Sandbox]:
    """The sandboxes of a name in `KINDS`, or those at an import path."""
    if kind not in KINDS and "." not in kind:
        raise UsageError(f"there is no sandbox `{kind}`", hint=f"{', '.join(KINDS)}, or package.module:Class")
    return load_function(KINDS.get(kind, kind), like="sandbox(settings)")


class Sandboxes:
    """Opens sandboxes of one kind, at most `concurrency` at the same time."""

    def __init__(self, kind: str, settings: SandboxSettings, concurrency: int) -> None:
        self._create = load_kind(kind)
        self._settings = settings
        self._places = asyncio.Semaphore(concurrency)

    @asynccontextmanager
    async def open(self, **changes: Any) -> AsyncIterator[Sandbox]:
        """A sandbox, once there is a place for it; `changes` are fields of the settings, such as its image and log."""
        async with self._places, self._create(replace(self._settings, **changes)) as sandbox:
            yield sandbox

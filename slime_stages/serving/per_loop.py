"""Clients of which each event loop has one: made when it first asks, closed when it ends.

`asyncio.run` closes generators that are left suspended; one that waits to close its client ends with the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> Any:
        """To be awaited."""


Client = TypeVar("Client", bound=Closable)


class PerLoop(Generic[Client]):
    """Keeps what `make` makes, one for each event loop."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._kept: dict[asyncio.AbstractEventLoop, tuple[Client, AsyncGenerator[None]]] = {}

    async def get(self) -> Client:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            client = self._make()
            ending = self._closing(loop, client)
            self._kept[loop] = client, ending
            await anext(ending)
        return self._kept[loop][0]

    async def close(self) -> None:
        """Close that of the running loop before the loop ends."""
        if (kept := self._kept.get(asyncio.get_running_loop())) is not None:
            await kept[1].aclose()

    async def _closing(self, loop: asyncio.AbstractEventLoop, client: Client) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            del self._kept[loop]
            await client.close()

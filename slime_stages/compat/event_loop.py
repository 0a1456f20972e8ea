"""One event loop in a thread of its own, for functions that are not async and call some that are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")


class AsyncLoopThread:
    """Runs an event loop until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="plug-ins", daemon=True).start()

    def run(self, coro: Coroutine[Any, Any, Result]) -> Result:
        """Wait for what a coroutine returns; called from another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result()


@cache
def get_async_loop() -> AsyncLoopThread:
    """The process's loop for plug-ins."""
    return AsyncLoopThread()


def run(coro: Coroutine[Any, Any, Result]) -> Result:
    return get_async_loop().run(coro)

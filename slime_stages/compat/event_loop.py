"""One event loop in a thread of its own, for functions that are not async and call some that are."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")


END_SECONDS = 5.0
"""For what the loop leaves open to be closed when the process ends."""


class AsyncLoopThread:
    """Runs an event loop until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="plug-ins", daemon=True).start()
        atexit.register(self._end)

    def run(self, coro: Coroutine[Any, Any, Result]) -> Result:
        """Wait for what a coroutine returns; called from another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result()

    def _end(self) -> None:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self.loop.shutdown_asyncgens(), self.loop).result(END_SECONDS)


@cache
def get_async_loop() -> AsyncLoopThread:
    """The process's loop for plug-ins."""
    return AsyncLoopThread()


def run(coro: Coroutine[Any, Any, Result]) -> Result:
    return get_async_loop().run(coro)

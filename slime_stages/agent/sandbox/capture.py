"""Read what a program writes without being drowned in it."""

from __future__ import annotations

import asyncio
import os

_CHUNK_BYTES = 1 << 16


class Excerpt:
    """The beginning and the end of what is added to it, `most_bytes` together."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._head, self._tail = bytearray(), bytearray()
        self.dropped_bytes = 0
        """Left out between the two."""

    def add(self, part: bytes) -> None:
        room = max(0, self._half - len(self._head))
        self._head += part[:room]
        self._tail += part[room:]
        if (excess := len(self._tail) - self._half) > 0:
            del self._tail[:excess]
            self.dropped_bytes += excess

    def content(self) -> bytes:
        """What was kept, with a line that says how much is missing."""
        gap = f"\n… {self.dropped_bytes} bytes left out …\n".encode() if self.dropped_bytes else b""
        return bytes(self._head) + gap + bytes(self._tail)


class Capture(Excerpt):
    """An excerpt of what comes out of a pipe. It owns the descriptor."""

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Set when nobody holds the other end."""
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Read no more."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if not self.ended.done():
            self.ended.set_result(None)

    def _read(self) -> None:
        try:
            part = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if part:
            self.add(part)
        else:
            self.close()

"""Whether an answer arrived: a client's machine acknowledges what it took, and resets what its program did not read."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress

POLL_SECONDS = 0.002
TCP_CLOSED = 7
"""The state of a connection that was reset, in Linux's `tcp_info`."""


class Delivery:
    """Watches a connection, and still knows how it ended once it has; use it in `with`."""

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        """ConnectionError if the connection has ended already."""
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket").dup()

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def arrived(self) -> bool:
        """Wait until all that was sent is taken, or the client leaves; whether it was, as far as the system says."""
        while self._untaken_bytes() and not self._transport.is_closing():
            try:
                await asyncio.sleep(POLL_SECONDS)
            except asyncio.CancelledError:
                if not self._transport.is_closing():
                    raise
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()  # the client has left, which may well be because it has its answer
        return not self._untaken_bytes() and not self._was_reset()

    def _untaken_bytes(self) -> int:
        count = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, count)
        return int.from_bytes(count, sys.byteorder)

    def _was_reset(self) -> bool:
        if self._socket.family not in (socket.AF_INET, socket.AF_INET6) or sys.platform != "linux":
            return False
        return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSED

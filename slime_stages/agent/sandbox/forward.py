"""Hand connections on to one service of this machine, by TCP or a Unix socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 16


class Forward:
    """Hands on what a socket accepts, wherever that listens, until it is closed."""

    def __init__(self, url: str) -> None:
        """`url` of the service is `http://host:port/path`, or `unix:///path/of/a/socket`."""
        self._parts = urlsplit(url)
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""
        """The one that clients use, where the socket listens."""

    async def start(self, listener: socket.socket) -> Self:
        listener.setblocking(False)
        path = "" if self._parts.scheme == "unix" else self._parts.path
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        self._server = await asyncio.start_server(self._hand_on, sock=listener)
        return self

    def close(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            there_reader, there_writer = await self._connect()
        except OSError:  # the client sees that nobody answers
            writer.close()
            return
        try:
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        except asyncio.CancelledError:
            pass  # `close` was called; asyncio would log a cancelled connection as an error
        finally:
            for end in (there_writer, writer):
                end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._parts.scheme == "unix":
            return await asyncio.open_unix_connection(self._parts.path)
        return await asyncio.open_connection(self._parts.hostname, self._parts.port or 80)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends, of which the other is told.

    What comes for a side that is gone is taken all the same: a program that ends on the last line of an answer has
    had it, and a service that is reset before its last byte would think otherwise.
    """
    with suppress(OSError):
        while part := await reader.read(_CHUNK_BYTES):
            with suppress(OSError):
                writer.write(part)
                await writer.drain()
    with suppress(OSError):
        writer.write_eof()

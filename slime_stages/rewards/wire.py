"""Messages between the pool, its supervisor and the workers: a length, a number, then bytes.

Tasks travel in units, messages within a message, so that quick ones do not cost a round each. So do answers: a report
has as many of them as its number says.
"""

from __future__ import annotations

import asyncio
import socket
import struct

LOCAL, REMOTE = b"L", b"R"
"""The first byte of a task says who scores it: a worker, or a reward server that the supervisor asks."""

_HEADER = struct.Struct("!QQ")


def pack(number: int, body: bytes) -> bytes:
    """One message."""
    return _HEADER.pack(len(body), number) + body


def split(body: bytes) -> list[tuple[int, bytes]]:
    """The messages within a message."""
    messages, position = [], 0
    while position < len(body):
        length, number = _HEADER.unpack_from(body, position)
        start = position + _HEADER.size
        position = start + length
        messages.append((number, body[start:position]))
    return messages


def send(connection: socket.socket, number: int, body: bytes) -> None:
    """Send one message; OSError if nobody listens any more."""
    connection.sendall(pack(number, body))


def receive(connection: socket.socket) -> tuple[int, bytes] | None:
    """The next message, or None if the other side is gone."""
    header = _receive_exactly(connection, _HEADER.size)
    if header is None:
        return None
    length, number = _HEADER.unpack(header)
    body = _receive_exactly(connection, length)
    return None if body is None else (number, body)


class Inbox:
    """The messages of a connection, several with one call of the kernel where they have come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def next(self) -> tuple[int, bytes] | None:
        """`receive`; nothing is lost by a timeout of the connection."""
        if not self._has(_HEADER.size):
            return None
        length, number = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + length
        if not self._has(end):
            return None
        body = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return number, body

    def _has(self, length: int) -> bool:
        while (missing := length - len(self._buffer)) > 0:
            try:
                part = self._connection.recv(min(max(missing, 1 << 16), 1 << 20))
            except ConnectionError:
                return False
            if not part:
                return False
            self._buffer += part
        return True


async def read(stream: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """`receive` for asyncio."""
    try:
        length, number = _HEADER.unpack(await stream.readexactly(_HEADER.size))
        return number, await stream.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _receive_exactly(connection: socket.socket, length: int) -> bytes | None:
    received = bytearray()
    while len(received) < length:
        try:
            part = connection.recv(min(length - len(received), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        received += part
    return bytes(received)

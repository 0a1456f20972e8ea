"""Messages between the pool, its supervisor and the workers: a length, a task number, then bytes."""

from __future__ import annotations

import asyncio
import socket
import struct

_HEADER = struct.Struct("!QQ")


def pack(number: int, body: bytes) -> bytes:
    """One message."""
    return _HEADER.pack(len(body), number) + body


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

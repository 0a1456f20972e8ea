"""Sessions: one for each run of an agent, opened by whoever starts it, told apart by the token that the agent sends.

The adapter's server may run in a thread of its own, and sessions are opened and closed from another: what both change
is changed under a lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from slime_stages.agent.adapters.errors import RequestError
from slime_stages.agent.adapters.turn import Message
from slime_stages.trace.handles import TraceHandle, bind_trace_carrier

DEFAULT = "default"
"""The session of requests that name none."""
LONGEST_ID = 512
POLL_SECONDS = 0.01
EARLIER_SECONDS = 1.0
"""How long one client's slow reading may hold up another answer of the session."""
CANCEL_SECONDS = 5.0
"""How long a cancelled request may take to end."""


@dataclass(slots=True, kw_only=True)
class Session:
    """What is known of a session beside its trajectory."""

    id: str
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    max_context_tokens: int = 0
    """Of prompt and answer together; 0: as many as the engine takes."""
    turn_count: int = 0
    """Requests let in so far."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    """Requests at work."""
    deliveries: set[asyncio.Future[None]] = field(default_factory=set)
    """Answers on their way, or taken and not yet recorded."""
    trace: TraceHandle = field(default_factory=bind_trace_carrier)
    """Its turns, for the sample that the run is of."""
    histories: dict[str, list[Message]] = field(default_factory=dict)
    """The messages of a response by its id, where a protocol lets clients go on from one."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_sealed: bool = False
    """Nothing is recorded any more."""

    @asynccontextmanager
    async def delivery(self, earlier: Collection[asyncio.Future[None]]) -> AsyncIterator[None]:
        """While an answer is delivered and recorded, behind those on whose answers its request may have built."""
        if earlier:
            await asyncio.wait(earlier, timeout=EARLIER_SECONDS)
        done = asyncio.get_running_loop().create_future()
        self.deliveries.add(done)
        try:
            yield
        finally:
            self.deliveries.discard(done)
            done.set_result(None)


class Sessions:
    """All sessions of an adapter. A session that was closed stays so, and its id cannot be used again."""

    def __init__(self, *, max_turns: int | None, known_only: bool) -> None:
        self.max_turns = max_turns
        self.known_only = known_only
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}
        self._closed: set[str] = set()

    def open(self, sid: str, sampling_defaults: Mapping[str, Any] | None, max_context_tokens: int) -> None:
        """ValueError if there is, or was, one of this id, and for an id that no header can carry."""
        if not is_valid_id(sid):
            raise ValueError(f"{sid!r} is no session id: 1 to {LONGEST_ID} printable characters are")
        with self._lock:
            if sid in self._open or sid in self._closed:
                raise ValueError(f"session {sid!r} exists already; every run of an agent needs an id of its own")
            self._open[sid] = Session(
                id=sid, sampling_defaults=dict(sampling_defaults or {}), max_context_tokens=max_context_tokens
            )

    def check(self, sid: str) -> None:
        """RequestError if no request of this session is let in."""
        if not is_valid_id(sid):
            raise RequestError(400, f"a session id has 1 to {LONGEST_ID} printable characters")
        if sid in self._closed:
            raise RequestError(503, "session closed", is_final=True)
        if sid not in self._open and self.known_only:
            raise RequestError(401, "no session of this name was opened: send its id as the API key")

    def enter(self, sid: str, task: asyncio.Task[Any]) -> Session:
        """Let a request in. RequestError if its session is closed, unknown, or has had all its turns."""
        with self._lock:
            self.check(sid)
            session = self._open.setdefault(sid, Session(id=sid))
            if self.max_turns is not None and session.turn_count >= self.max_turns:
                raise RequestError(429, f"session {sid!r} has had its {self.max_turns} turns", is_final=True)
            session.turn_count += 1
            session.tasks.add(task)
            return session

    def leave(self, session: Session, task: asyncio.Task[Any]) -> None:
        with self._lock:
            session.tasks.discard(task)

    async def close(self, sid: str, wait_timeout: float) -> None:
        """Let no request in any more, wait for those at work, then cancel them; nothing is recorded after it."""
        with self._lock:
            self._closed.add(sid)
            session = self._open.get(sid)
        if session is None:
            return
        if not await _until(lambda: not session.tasks, wait_timeout):
            with self._lock:
                left = list(session.tasks)
            for task in left:
                task.get_loop().call_soon_threadsafe(task.cancel)
            await _until(lambda: not session.tasks, CANCEL_SECONDS)
        with session.lock:
            session.is_sealed = True

    def take(self, sid: str) -> Session | None:
        """A session that was closed, once."""
        with self._lock:
            return self._open.pop(sid, None)


def is_valid_id(sid: str) -> bool:
    return 0 < len(sid) <= LONGEST_ID and sid.isprintable()


async def _until(is_true: Callable[[], bool], seconds: float) -> bool:
    """Tasks belong to another loop, so they are looked at, not awaited."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True

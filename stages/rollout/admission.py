"""Which groups run: begun while the engines have room and the job has time, waited for, and given up at its end."""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from slime_stages.drain import Drained, begin_drain, drain_reason, listening
from slime_stages.sample import Sample, Status
from slime_stages.slurm.limits import EXIT_SECONDS, SHORTEST_DRAIN_SECONDS, drain_seconds

SAME_SIGNAL_SECONDS = 2.0
"""A batch system may tell a process twice: directly, and through the launcher above it."""

POLL_SECONDS = 1.0
UNANSWERED = (Status.FAILED, Status.ABORTED)


@dataclass(slots=True, kw_only=True)
class Deadline:
    """When to begin nothing more, and when to wait for nothing more, so that the job ends by itself."""

    job_end: float | None
    """Unix time; None: not known."""
    group_count: int
    """Of the shard: all of them are to be written at the end."""
    _seconds: list[float] = field(default_factory=list)
    """That finished groups took, in order."""
    _record_seconds: float = 0.0

    def note(self, seconds: float, record_seconds: float) -> None:
        """A group has finished, and was recorded."""
        insort(self._seconds, seconds)
        self._record_seconds += record_seconds

    @property
    def stop_time(self) -> float:
        """Unix time from which the rest of the job is needed to write and to leave."""
        if self.job_end is None:
            return float("inf")
        mean = self._record_seconds / max(1, len(self._seconds))
        return self.job_end - EXIT_SECONDS - 2 * mean * self.group_count

    def allows_another(self) -> bool:
        """Whether 19 of 20 groups would be finished in time, were they begun now."""
        usual = self._seconds[-(len(self._seconds) // 20) - 1] if self._seconds else 0.0
        return time.time() + usual <= self.stop_time


@dataclass(slots=True, kw_only=True)
class Admission:
    """Runs groups, each once, and none that cannot be finished."""

    room: int
    """Samples at which the engines are busy: no further group is begun."""
    deadline: Deadline
    ask: Callable[[list[Sample], Callable[[], None]], Coroutine[Any, Any, list[Sample]]]
    """The answers to a group; calls its second argument at each answer."""
    record: Callable[[list[Sample]], None]
    """Called with each finished group, so that it survives a kill."""
    is_served: Callable[[], Coroutine[Any, Any, bool]]
    """Whether an engine is there. A signal to a whole job may end it, too."""
    _in_flight: int = 0
    _running: dict[asyncio.Task[list[Sample]], tuple[int, float]] = field(default_factory=dict)
    """Its place and the time it began, for each group."""
    _signalled: float | None = None
    _stop: float = float("inf")
    """Unix time at which to give up what runs, after a signal."""
    _watch: asyncio.Task[None] | None = None
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, groups: Sequence[list[Sample]]) -> list[list[Sample]]:
        """Every group with its answers, in the order given. `Drained` if some are left for the next attempt."""
        waiting = deque(enumerate(groups))
        finished: dict[int, list[Sample]] = {}
        loop = asyncio.get_running_loop()
        with listening(lambda: loop.call_soon_threadsafe(self._on_signal)):
            try:
                while self._running or waiting:
                    while waiting and self._admits():
                        self._begin(*waiting.popleft())
                    if not self._running or time.time() >= self._stop_time:
                        break
                    await self._changed()
                    self._collect(finished)
            finally:
                await self._give_up()
        if len(finished) < len(groups):
            begin_drain(f"the job ends at {time.strftime('%H:%M:%S', time.localtime(self.deadline.job_end))}")
            raise Drained(drain_reason() or "")
        return [finished[place] for place in range(len(groups))]

    @property
    def _stop_time(self) -> float:
        return min(self._stop, self.deadline.stop_time)

    def _admits(self) -> bool:
        return self._signalled is None and self._in_flight < self.room and self.deadline.allows_another()

    def _begin(self, place: int, group: list[Sample]) -> None:
        unanswered = len(group)
        self._in_flight += unanswered

        def answered(count: int = 1) -> None:
            nonlocal unanswered
            unanswered, self._in_flight = unanswered - count, self._in_flight - count
            self._change.set()

        task = asyncio.ensure_future(self.ask(group, answered))
        task.add_done_callback(lambda _: answered(unanswered))
        self._running[task] = (place, time.monotonic())

    async def _changed(self) -> None:
        """Wait until a group or a sample is finished, a signal came, or time is up."""
        left = self._stop_time - time.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if left == float("inf") else left):
                await self._change.wait()
        self._change.clear()

    def _collect(self, finished: dict[int, list[Sample]]) -> None:
        """Record the groups that have come to their end. Raises the error of one only once the others are kept."""
        ended = [task for task in self._running if task.done()]
        for task in ended:
            place, begun = self._running.pop(task)
            if task.exception() is not None or self._is_hit(task.result()):
                continue
            now = time.monotonic()
            self.record(task.result())
            self.deadline.note(now - begun, time.monotonic() - now)
            finished[place] = task.result()
        for task in ended:
            task.result()

    def _is_hit(self, group: list[Sample]) -> bool:
        """Whether a signal to the whole job may have failed a tool or an engine: the next attempt asks again."""
        return self._signalled is not None and any(Status(sample.status) in UNANSWERED for sample in group)

    def _on_signal(self) -> None:
        now = time.time()
        if self._signalled is None:
            self._signalled, self._stop = now, now + SHORTEST_DRAIN_SECONDS
            self._watch = asyncio.ensure_future(self._watch_engines(now))
        elif self._watch and now - self._signalled > SAME_SIGNAL_SECONDS:
            self._watch.cancel()
            self._stop = now
        self._change.set()

    async def _watch_engines(self, signalled: float) -> None:
        """Let what runs go on while the job lives and an engine is there."""
        self._stop = signalled + await asyncio.to_thread(drain_seconds)
        self._change.set()
        while await self.is_served():
            await asyncio.sleep(POLL_SECONDS)
        self._stop = time.time()
        self._change.set()

    async def _give_up(self) -> None:
        tasks = [*self._running, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

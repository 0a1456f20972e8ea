"""Which groups run: begun while the engines have room and the job has time, waited for, and given up at its end.

Where several shards come one after the other in one process, a group may outlast the shard that began it: it is left
to the next one like any other, which finds it running.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from slime_stages.drain import Drained, begin_drain, drain_reason, listening
from slime_stages.sample import Sample, Status
from slime_stages.slurm.limits import SHORTEST_DRAIN_SECONDS, drain_seconds
from stages.rollout.deadline import Deadline
from stages.rollout.judging import Verdict
from stages.rollout.selection import is_finished

SAME_SIGNAL_SECONDS = 2.0
"""A batch system may tell a process twice: directly, and through the launcher above it."""

POLL_SECONDS = 1.0
UNANSWERED = (Status.FAILED, Status.ABORTED)
GRACE_SECONDS, DRAIN_GRACE_SECONDS = 10.0, 3.0
"""For answers to come back that were cut short; later ones, of plug-ins that do not hear of it, are asked anew."""


class Finished(NamedTuple):
    """What came of a group."""

    group: list[Sample]
    verdict: Verdict | None
    """None: it is not finished."""
    seconds: float
    record_seconds: float


@dataclass(slots=True, kw_only=True)
class Run:
    """A group that is worked on."""

    group: list[Sample]
    """What is left if it is given up: a copy from before it began, then its answers."""
    begun: float
    is_given_up: bool = False
    """A plug-in may answer when it is cancelled: too late."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is a group of the present work."""


class Work(Protocol):
    """What is to be asked, and where it goes."""

    def next(self) -> list[Sample] | None:
        """The next group to begin; None while there is none."""

    async def record(self, group: list[Sample]) -> float:
        """Keep a finished group: it survives a kill from here on. Returns the seconds that writing took."""

    def take(self, group: list[Sample], verdict: Verdict) -> None:
        """A group is finished and judged."""

    def leave(self, group: list[Sample]) -> None:
        """A group that was begun is given up, with what it has so far."""

    def is_done(self) -> bool:
        """Nothing else need be waited for."""

    def stop_time(self) -> float:
        """Unix time at which to be content with what there is."""


@dataclass(slots=True, kw_only=True)
class Admission:
    """Runs groups, each once, and none that cannot be finished."""

    room: int
    """Samples at which the engines are busy: no further group is begun."""
    deadline: Deadline
    work: Work
    ask: Callable[[list[Sample], Callable[[], None]], Coroutine[Any, Any, list[Sample]]]
    """The answers to a group; calls its second argument at each answer."""
    judge: Callable[[list[Sample]], Coroutine[Any, Any, Verdict]]
    """Whether a finished group is good."""
    is_served: Callable[[], Coroutine[Any, Any, bool]]
    """Whether an engine is there. A signal to a whole job may end it, too."""
    abort: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Goes on, until it is cancelled, to have whatever runs answered with what it has; None: it is thrown away."""
    saves_unfinished: bool = False
    """At a drain, too, such answers are worth the seconds that they take."""
    _in_flight: int = 0
    _running: dict[asyncio.Task[Finished], Run] = field(default_factory=dict)
    _is_ending: bool = False
    """Whatever runs is told to answer with what it has."""
    _signalled: float | None = None
    _stop: float = float("inf")
    """Unix time at which to give up what runs, after a signal."""
    _watch: asyncio.Task[None] | None = None
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Begin and finish groups until the work is done, or has nothing more to begin; `Drained` if time is up."""
        async with self.open():
            await self.fill()
            await self.wind_up()
        self.check()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Signals are listened to within, and nothing runs any more behind it."""
        loop = asyncio.get_running_loop()
        with listening(lambda: loop.call_soon_threadsafe(self._on_signal)):
            try:
                yield
            finally:
                await self._give_up()

    async def fill(self) -> None:
        """Begin and finish groups until the work is done, has nothing more to begin, or time is up."""
        while not self.work.is_done():
            while self._admits() and (group := self.work.next()) is not None:
                self._begin(group)
            if not any(run.wanted.is_set() for run in self._running.values()) or time.time() >= self._stop_time:
                break
            await self._changed()
            self._collect()

    def hand_over(self) -> None:
        """Leave what runs, running, to the work that follows."""
        for run in self._running.values():
            if run.wanted.is_set():
                self.work.leave(run.group)
                run.wanted.clear()

    def check(self) -> None:
        """`Drained` if the work was broken off for want of time."""
        if not self.work.is_done() and time.time() < self.work.stop_time():
            self.check_time()

    def check_time(self) -> None:
        """`Drained` if nothing more is begun."""
        if self.is_closing:
            begin_drain(f"the job ends at {time.strftime('%H:%M:%S', time.localtime(self.deadline.job_end))}")
            raise Drained(drain_reason() or "")

    @property
    def group_count(self) -> int:
        """Groups that run."""
        return len(self._running)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is begun, since the job ends."""
        return self._signalled is not None or not self.deadline.allows_another()

    @property
    def _stop_time(self) -> float:
        return min(self._stop, self.deadline.stop_time, self.work.stop_time())

    @property
    def _is_draining(self) -> bool:
        return self._signalled is not None or time.time() >= self.deadline.stop_time

    def _admits(self) -> bool:
        """Whether to look at the next group. One that runs from before needs no room."""
        has_room = self._in_flight < self.room or not all(run.wanted.is_set() for run in self._running.values())
        return has_room and not self.is_closing

    def _begin(self, group: list[Sample]) -> None:
        for run in self._running.values():
            if not run.wanted.is_set() and run.group[0].group_index == group[0].group_index:
                run.wanted.set()
                self._change.set()
                return
        unanswered = len(group)
        self._in_flight += unanswered
        run = Run(group=group if self.abort is None else copy.deepcopy(group), begun=time.monotonic())
        run.wanted.set()

        def answered(count: int = 1) -> None:
            nonlocal unanswered
            unanswered, self._in_flight = unanswered - count, self._in_flight - count
            self._change.set()

        task = asyncio.ensure_future(self._finish(run, group, answered))
        task.add_done_callback(lambda _: answered(unanswered))
        self._running[task] = run

    async def _finish(self, run: Run, group: list[Sample], answered: Callable[[], None]) -> Finished:
        """The group with its answers, recorded and judged; without a verdict if it is not finished."""
        made = await self.ask(group, answered)
        asked = time.monotonic() - run.begun
        await run.wanted.wait()
        if run.is_given_up:
            raise asyncio.CancelledError
        is_cut = self._is_ending and not is_finished(made)
        if is_cut and not (self._signalled and any(sample.status == Status.FAILED for sample in made)):
            return Finished(made if self.saves_unfinished else run.group, None, asked, 0.0)
        if self._is_hit(made):
            return Finished(run.group, None, asked, 0.0)
        run.group, begun = made, time.monotonic()
        verdict: Verdict | None = None
        while True:
            work = self.work
            record_seconds = await work.record(made)
            verdict = verdict or await self.judge(made)
            await run.wanted.wait()
            if work is self.work:  # else it was handed over while it was written or judged
                return Finished(made, verdict, asked + time.monotonic() - begun, record_seconds)

    async def _changed(self, seconds: float | None = None) -> None:
        """Wait until a group or a sample is finished, a signal came, or time is up."""
        left = self._stop_time - time.time() if seconds is None else seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(None if left == float("inf") else left):
                await self._change.wait()
        self._change.clear()

    def _collect(self) -> None:
        """Take the groups that have come to their end. Raises the error of one only once the others are kept."""
        ended = [task for task, run in self._running.items() if task.done() and run.wanted.is_set()]
        for task in ended:
            self._running.pop(task)
            if task.exception() is not None:
                continue
            group, verdict, seconds, record_seconds = task.result()
            if verdict is None:
                self.work.leave(group)
                continue
            self.deadline.note(seconds, record_seconds)
            self.work.take(group, verdict)
        for task in ended:
            task.result()

    def _is_hit(self, group: list[Sample]) -> bool:
        """Whether a signal to the whole job may have failed a tool or an engine: the next attempt asks again."""
        return self._signalled is not None and any(Status(sample.status) in UNANSWERED for sample in group)

    async def wind_up(self) -> None:
        """What still runs is left: as far as it came, where that is of use to anybody."""
        if self.abort is not None and self._running and (self.saves_unfinished or not self._is_draining):
            self._is_ending = True
            aborting = asyncio.ensure_future(self.abort())
            end = time.monotonic() + (DRAIN_GRACE_SECONDS if self._is_draining else GRACE_SECONDS)
            while any(run.wanted.is_set() for run in self._running.values()) and (left := end - time.monotonic()) > 0:
                await self._changed(left)
                self._collect()
            await _cancelled([aborting])
        given_up = [run for run in self._running.values() if run.wanted.is_set()]
        await self._give_up()
        for run in given_up:
            self.work.leave(run.group)

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
        for run in self._running.values():
            run.is_given_up = True
        await _cancelled([*self._running, *([self._watch] if self._watch else [])])
        self._running.clear()


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

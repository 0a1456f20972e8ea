"""The process between the pool and its workers: it forks, times, weighs and kills them, and runs no user code.

Tasks for a reward server need no worker: it asks the server itself, about many at a time.

It has imported what grading needs before it forks, so a worker starts in milliseconds. When the pool's process is
gone, however that died, it kills every worker and everything they started, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import pickle
import signal
import socket
import time
import traceback
from dataclasses import dataclass, field
from types import SimpleNamespace

from slime_stages.isolation import process_tree
from slime_stages.rewards import hub, wire
from slime_stages.rewards.clock import TaskClock
from slime_stages.rewards.remote import RemoteScorer
from slime_stages.rewards.tasks import SPENT, PoolSettings, RewardStatus, answer_of, report_of
from slime_stages.rewards.worker import run_worker

_START_SECONDS = 300.0
"""For importing the run's reward function in a new worker, before its first task's clock starts."""
_WATCH_SECONDS = 0.05
_PARENT_POLL_SECONDS = 1.0
_MOST_PROCESSES = 128
"""Of one worker, itself included. A limit of the kernel (RLIMIT_NPROC) counts what the user runs elsewhere, too."""
_END_SECONDS = 5.0
_REAP_SECONDS = 0.005


@dataclass(eq=False)
class Worker:
    """A forked worker, as the supervisor sees it."""

    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    clock: TaskClock
    exited: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Its exit code, negative for a signal."""
    is_busy: bool = False
    killed_for: tuple[RewardStatus, str] | None = None
    """Of what it had too much when it was killed."""
    failure: str | None = None
    """Why it never became ready."""
    task_count: int = 0


class Supervisor:
    """Keeps the workers of one pool."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._units: asyncio.Queue[bytes] = asyncio.Queue()
        self._workers: dict[int, Worker] = {}
        self._parent = os.getppid()
        self._reaping: asyncio.TimerHandle | None = None
        self._remote = RemoteScorer(settings.requests, settings.timeout_seconds)

    async def run(self, connection: socket.socket) -> None:
        """Hand tasks to workers and their answers back, until the pool closes the connection."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap_soon)
        # One signal that is told of is enough for all that ended; by default Python prints each that did not fit.
        signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
        reader, self._client = await asyncio.open_unix_connection(sock=connection)
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(self._keep_worker()) for _ in range(self._settings.workers)]
                jobs += [group.create_task(self._watch_workers()), group.create_task(self._watch_parent(reader))]
                asked: set[asyncio.Task[None]] = set()
                while message := await wire.read(reader):
                    if message[1].startswith(wire.LOCAL):
                        self._units.put_nowait(message[1][1:])
                        continue
                    asked.add(job := group.create_task(self._ask(message[0], message[1][1:])))
                    job.add_done_callback(asked.discard)
                for job in (*jobs, *asked):
                    job.cancel()
        finally:
            await self._remote.close()
            await self._end()

    async def _ask(self, number: int, task: bytes) -> None:
        answer = await self._remote.answer(task)
        self._client.write(wire.pack(1, report_of([(number, answer)])))

    async def _keep_worker(self) -> None:
        worker = await self._start_worker()
        while True:
            unit = dict(wire.split(await self._units.get()))
            while unit:
                if worker.exited.done() and worker.failure is None:  # it died between two units
                    self._dismiss(worker)
                    worker = await self._start_worker()
                is_spent = await self._score(worker, unit)
                if worker.failure is not None or is_spent or (not unit and self._is_worn(worker)):
                    self._dismiss(worker)
                    worker = await self._start_worker()

    async def _score(self, worker: Worker, unit: dict[int, bytes]) -> bool:
        """Have the tasks scored and take them out of the unit, until none is left or the worker is spent: True.

        Then those that are left, but for the one that is to blame, are another worker's.
        """
        if worker.failure is not None:
            self._blame(unit, next(iter(unit)), RewardStatus.ERROR, worker.failure, 0.0)
            return True
        _send(worker, unit)
        worker.is_busy, sent, last_count = True, time.monotonic(), len(unit)
        try:
            while unit:
                last_count = self._send_more(worker, unit, last_count)
                message = await self._report(worker, sent)
                if message is None:
                    number, started = worker.clock.read()
                    cause = await self._cause_of_death(worker)
                    self._blame(unit, number, *cause, time.monotonic() - max(started, sent))
                    return True
                for number in list(itertools.islice(unit, message[0])):
                    del unit[number]
                worker.task_count += message[0]
                self._client.write(wire.pack(*message))
                if message[1].startswith(SPENT):
                    return True
        except TimeoutError:
            number, started = worker.clock.read()
            text = f"no answer after {self._settings.timeout_seconds:g} s: killed"
            self._blame(unit, number, RewardStatus.TIMEOUT, text, time.monotonic() - max(started, sent))
            return True
        finally:
            worker.is_busy = False
        return False

    def _send_more(self, worker: Worker, unit: dict[int, bytes], last_count: int) -> int:
        """Send the next unit, too, while the worker has no more left than the last one; how many the last one has.

        Only after quick tasks, which a unit has several of: behind one that may hang, another worker would be sooner.
        """
        is_enough = worker.task_count + len(unit) >= self._settings.tasks_per_worker
        if last_count == 1 or len(unit) > last_count or is_enough or self._units.empty():
            return last_count
        more = dict(wire.split(self._units.get_nowait()))
        _send(worker, more)
        unit.update(more)
        return len(more)

    async def _report(self, worker: Worker, sent: float) -> tuple[int, bytes] | None:
        """The worker's next answers, or None if it is gone; TimeoutError once a task has run for too long."""
        reading = asyncio.ensure_future(wire.read(worker.reader))
        try:
            while not reading.done():
                left = max(worker.clock.read()[1], sent) + self._settings.timeout_seconds - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({reading}, timeout=left)
            return reading.result()
        finally:
            reading.cancel()

    def _blame(self, unit: dict[int, bytes], number: int, status: RewardStatus, message: str, seconds: float) -> None:
        """Answer for the task that took its worker down."""
        number = number if number in unit else next(iter(unit))  # it died before it began
        del unit[number]
        answer = answer_of(status, None, message, seconds, is_spent=True)
        self._client.write(wire.pack(1, report_of([(number, answer)])))

    async def _start_worker(self) -> Worker:
        """A new worker, ready for tasks unless `failure` says why not."""
        worker = await self._fork()
        try:
            async with asyncio.timeout(_START_SECONDS):
                message = await wire.read(worker.reader)
        except TimeoutError:
            worker.failure = f"importing the reward function took more than {_START_SECONDS:g} s: killed"
        else:
            if message is None:
                cause = (await self._cause_of_death(worker))[1]
                worker.failure = f"while importing the reward function: {cause}"
        return worker

    async def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        supervisor, clock = os.getpid(), TaskClock()
        pid = os.fork()
        if pid == 0:
            try:
                run_worker(theirs, self._settings, supervisor, clock)
            except BaseException:
                traceback.print_exc()
                os._exit(70)
            os._exit(0)
        # Known before anything is awaited: `_reap` kills children that are no workers.
        worker = self._workers[pid] = Worker(pid=pid, reader=reader, writer=writer, clock=clock)
        theirs.close()
        return worker

    def _is_worn(self, worker: Worker) -> bool:
        return worker.task_count >= self._settings.tasks_per_worker

    def _dismiss(self, worker: Worker) -> None:
        worker.writer.close()
        if not worker.exited.done():
            process_tree.kill_tree(worker.pid)

    async def _cause_of_death(self, worker: Worker) -> tuple[RewardStatus, str]:
        try:
            async with asyncio.timeout(1):
                code = await asyncio.shield(worker.exited)
        except TimeoutError:
            return RewardStatus.ERROR, "the reward function closed its worker's connection"
        if worker.killed_for is not None:
            return worker.killed_for
        if code == -signal.SIGKILL:
            return RewardStatus.OOM, "the worker was killed from outside, most likely by the kernel for want of memory"
        if code < 0:
            return RewardStatus.ERROR, f"the worker died of {signal.Signals(-code).name}"
        return RewardStatus.ERROR, f"the worker exited with code {code}"

    def _reap_soon(self) -> None:
        """Once for all that end at about the same time: there may be hundreds."""
        if self._reaping is None:
            self._reaping = asyncio.get_running_loop().call_later(_REAP_SECONDS, self._reap)

    def _reap(self) -> None:
        """Bury dead children, and kill what they left behind: orphans become children of this process."""
        self._reaping = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if worker := self._workers.pop(ended[0], None):
                    with contextlib.suppress(OSError):
                        os.killpg(worker.pid, signal.SIGKILL)
                    worker.exited.set_result(os.waitstatus_to_exitcode(ended[1]))
        for child in process_tree.children(os.getpid()):
            if child not in self._workers:  # its own children come here in their turn
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)

    async def _watch_workers(self) -> None:
        """Kill workers that hold or start too much. The limit is on resident memory: limits on address space
        (RLIMIT_AS, RLIMIT_DATA) also count what libraries merely reserve, and miss what children hold."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for worker in [worker for worker in self._workers.values() if worker.is_busy]:
                if excess := self._excess(worker.pid):
                    worker.killed_for = excess
                    process_tree.kill_tree(worker.pid)

    def _excess(self, pid: int) -> tuple[RewardStatus, str] | None:
        if (count := 1 + len(process_tree.descendants(pid))) > _MOST_PROCESSES:
            return RewardStatus.ERROR, f"started {count} processes, the limit is {_MOST_PROCESSES}: killed"
        limit = self._settings.memory_bytes
        if limit is None or (held := process_tree.exceeds(pid, limit)) is None:
            return None
        return RewardStatus.OOM, f"held {held / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f} MiB: killed"

    async def _watch_parent(self, reader: asyncio.StreamReader) -> None:
        """End with the parent even if somebody else holds its side of the connection."""
        while os.getppid() == self._parent:
            await asyncio.sleep(_PARENT_POLL_SECONDS)
        reader.feed_eof()

    async def _end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while (left := process_tree.children(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                process_tree.kill_tree(pid)
            await asyncio.sleep(0.01)
            self._reap()


def _send(worker: Worker, unit: dict[int, bytes]) -> None:
    worker.writer.write(wire.pack(0, b"".join(wire.pack(number, task) for number, task in unit.items())))


def main(descriptor: int) -> None:
    """Serve the pool at the other end of this socket."""
    process_tree.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # the pool's process decides what a signal to the job means
    connection = socket.socket(fileno=descriptor)
    message = wire.receive(connection)
    if message is None:
        return
    settings: PoolSettings = pickle.loads(message[1])
    hub.warm_up(SimpleNamespace(**settings.args))
    gc.collect()
    gc.freeze()  # collections in workers then leave the pages alone that they share
    asyncio.run(Supervisor(settings).run(connection))
    os._exit(0)  # nothing is left to tidy up, and the pool is waiting

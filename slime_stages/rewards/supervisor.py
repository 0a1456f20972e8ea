"""The process between the pool and its workers: it hands them tasks and times them, and runs no user code.

Tasks for a reward server need no worker: it asks the server itself, about many at a time.

When the pool's process is gone, however that died, it kills every worker and everything they started, and ends.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import signal
import socket
import time
from types import SimpleNamespace

from slime_stages.isolation import process_tree
from slime_stages.rewards import hub, wire
from slime_stages.rewards.remote import RemoteScorer
from slime_stages.rewards.tasks import SPENT, PoolSettings, RewardStatus, answer_of, report_of
from slime_stages.rewards.worker_processes import Worker, WorkerProcesses

_PARENT_POLL_SECONDS = 1.0


class Supervisor:
    """Keeps the workers of one pool."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._units: asyncio.Queue[bytes] = asyncio.Queue()
        self._processes = WorkerProcesses(settings)
        self._parent = os.getppid()
        self._remote = RemoteScorer(settings.requests, settings.timeout_seconds)

    async def run(self, connection: socket.socket) -> None:
        """Hand tasks to workers and their answers back, until the pool closes the connection."""
        self._processes.reap_when_they_end()
        reader, self._client = await asyncio.open_unix_connection(sock=connection)
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(self._keep_worker()) for _ in range(self._settings.workers)]
                jobs += [group.create_task(self._processes.watch()), group.create_task(self._watch_parent(reader))]
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
            await self._processes.end()

    async def _ask(self, number: int, task: bytes) -> None:
        answer = await self._remote.answer(task)
        self._client.write(wire.pack(1, report_of([(number, answer)])))

    async def _keep_worker(self) -> None:
        worker = await self._processes.start()
        while True:
            unit = dict(wire.split(await self._units.get()))
            while unit:
                if worker.is_dead:  # it died between two units
                    worker.dismiss()
                    worker = await self._processes.start()
                is_spent = await self._score(worker, unit)
                if worker.failure is not None or is_spent or (not unit and self._is_worn(worker)):
                    worker.dismiss()
                    worker = await self._processes.start()

    async def _score(self, worker: Worker, unit: dict[int, bytes]) -> bool:
        """Have the tasks scored and take them out of the unit, until none is left or the worker is spent: True.

        Then those that are left, but for the one that is to blame, are another worker's.
        """
        if worker.failure is not None:
            self._blame(unit, next(iter(unit)), RewardStatus.ERROR, worker.failure, 0.0)
            return True
        worker.send(unit)
        worker.is_busy, sent, last_count = True, time.monotonic(), len(unit)
        try:
            while unit:
                last_count = self._send_more(worker, unit, last_count)
                message = await self._report(worker, sent)
                if message is None:
                    number, started = worker.clock.read()
                    cause = await worker.cause_of_death()
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
        worker.send(more)
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

    def _is_worn(self, worker: Worker) -> bool:
        return worker.task_count >= self._settings.tasks_per_worker

    async def _watch_parent(self, reader: asyncio.StreamReader) -> None:
        """End with the parent even if somebody else holds its side of the connection."""
        while os.getppid() == self._parent:
            await asyncio.sleep(_PARENT_POLL_SECONDS)
        reader.feed_eof()


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

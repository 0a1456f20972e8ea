"""The process between the pool and its workers: it forks, times, weighs and kills them, and runs no user code.

It has imported what grading needs before it forks, so a worker starts in milliseconds. When the pool's process is
gone, however that died, it kills every worker and everything they started, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pickle
import signal
import socket
import time
import traceback
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from slime_stages.rewards import hub, process_tree, wire
from slime_stages.rewards.tasks import PoolSettings, RewardStatus
from slime_stages.rewards.worker import run_worker

_START_SECONDS = 300.0
"""For importing the run's reward function in a new worker, before its first task's clock starts."""
_MEMORY_POLL_SECONDS = 0.05
_PARENT_POLL_SECONDS = 1.0
_END_SECONDS = 5.0


@dataclass(eq=False)
class Worker:
    """A forked worker, as the supervisor sees it."""

    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Its exit code, negative for a signal."""
    is_busy: bool = False
    too_much_memory: int | None = None
    """The bytes it held when it was killed for them."""
    failure: str | None = None
    """Why it never became ready."""
    task_count: int = 0


class Supervisor:
    """Keeps the workers of one pool."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._tasks: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._workers: dict[int, Worker] = {}
        self._parent = os.getppid()

    async def run(self, connection: socket.socket) -> None:
        """Hand tasks to workers and their answers back, until the pool closes the connection."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        reader, self._client = await asyncio.open_unix_connection(sock=connection)
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(self._keep_worker()) for _ in range(self._settings.workers)]
                jobs += [group.create_task(self._watch_memory()), group.create_task(self._watch_parent(reader))]
                while message := await wire.read(reader):
                    self._tasks.put_nowait(message)
                for job in jobs:
                    job.cancel()
        finally:
            await self._end()

    async def _keep_worker(self) -> None:
        worker = await self._start_worker()
        while True:
            number, task = await self._tasks.get()
            if worker.exited.done() and worker.failure is None:  # it died between two tasks
                self._dismiss(worker)
                worker = await self._start_worker()
            answer = await self._score(worker, number, task)
            self._client.write(wire.pack(number, json.dumps(answer).encode()))
            if worker.failure is not None or answer.get("is_spent", True) or self._is_worn(worker):
                self._dismiss(worker)
                worker = await self._start_worker()

    async def _score(self, worker: Worker, number: int, task: bytes) -> dict[str, Any]:
        if worker.failure is not None:
            return _no_answer(RewardStatus.ERROR, worker.failure, 0.0)
        worker.is_busy, started = True, time.monotonic()
        worker.task_count += 1
        worker.writer.write(wire.pack(number, task))
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                message = await wire.read(worker.reader)
        except TimeoutError:
            limit = self._settings.timeout_seconds
            return _no_answer(RewardStatus.TIMEOUT, f"no answer after {limit:g} s: killed", time.monotonic() - started)
        finally:
            worker.is_busy = False
        if message is None:
            return _no_answer(*await self._cause_of_death(worker), time.monotonic() - started)
        answer: dict[str, Any] = json.loads(message[1])
        return answer

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
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                run_worker(theirs, self._settings, supervisor)
            except BaseException:
                traceback.print_exc()
                os._exit(70)
            os._exit(0)
        # Known before anything is awaited: `_reap` kills children that are no workers.
        worker = self._workers[pid] = Worker(pid=pid, reader=reader, writer=writer)
        theirs.close()
        return worker

    def _is_worn(self, worker: Worker) -> bool:
        """Whether it did its share, or holds so much that the next task would be killed for what this one left."""
        limit = self._settings.memory_bytes
        if worker.task_count >= self._settings.tasks_per_worker:
            return True
        return limit is not None and process_tree.exceeds(worker.pid, limit // 2) is not None

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
        if worker.too_much_memory is not None:
            held, limit = worker.too_much_memory / 2**20, (self._settings.memory_bytes or 0) / 2**20
            return RewardStatus.OOM, f"held {held:.0f} MiB, the limit is {limit:.0f} MiB: killed"
        if code == -signal.SIGKILL:
            return RewardStatus.OOM, "the worker was killed from outside, most likely by the kernel for want of memory"
        if code < 0:
            return RewardStatus.ERROR, f"the worker died of {signal.Signals(-code).name}"
        return RewardStatus.ERROR, f"the worker exited with code {code}"

    def _reap(self) -> None:
        """Bury dead children, and kill what they left behind: orphans become children of this process."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if worker := self._workers.pop(ended[0], None):
                    with contextlib.suppress(OSError):
                        os.killpg(worker.pid, signal.SIGKILL)
                    worker.exited.set_result(os.waitstatus_to_exitcode(ended[1]))
        for child in process_tree.children(os.getpid()):
            if child not in self._workers:
                process_tree.kill_tree(child)

    async def _watch_memory(self) -> None:
        """Kill workers that hold too much. The limit is on resident memory: limits on address space (RLIMIT_AS,
        RLIMIT_DATA) also count what libraries merely reserve, and miss what children hold."""
        limit = self._settings.memory_bytes
        while limit is not None:
            await asyncio.sleep(_MEMORY_POLL_SECONDS)
            for worker in [worker for worker in self._workers.values() if worker.is_busy]:
                if held := process_tree.exceeds(worker.pid, limit):
                    worker.too_much_memory = held
                    process_tree.kill_tree(worker.pid)

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


def _no_answer(status: RewardStatus, message: str, seconds: float) -> dict[str, Any]:
    return {"rewards": None, "status": status.value, "message": message, "seconds": seconds, "is_spent": True}

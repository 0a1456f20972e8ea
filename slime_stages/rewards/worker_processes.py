"""The processes of a reward pool's workers: forked, weighed, killed with all that they started, and buried.

A worker is a fork of a process that has imported what grading needs, so it starts in milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
import traceback
from dataclasses import dataclass, field

from slime_stages.isolation import process_tree
from slime_stages.rewards import wire
from slime_stages.rewards.clock import TaskClock
from slime_stages.rewards.tasks import PoolSettings, RewardStatus
from slime_stages.rewards.worker import run_worker

_START_SECONDS = 300.0
"""For importing the run's reward function in a new worker, before its first task's clock starts."""
_WATCH_SECONDS = 0.05
_MOST_PROCESSES = 128
"""Of one worker, itself included. A limit of the kernel (RLIMIT_NPROC) counts what the user runs elsewhere, too."""
_END_SECONDS = 5.0
_REAP_SECONDS = 0.005


@dataclass(eq=False)
class Worker:
    """A forked worker, as its parent sees it."""

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

    @property
    def is_dead(self) -> bool:
        """It was ready once, and is gone."""
        return self.exited.done() and self.failure is None

    def send(self, unit: dict[int, bytes]) -> None:
        """Tasks, by number; it answers them in this order."""
        self.writer.write(wire.pack(0, b"".join(wire.pack(number, task) for number, task in unit.items())))

    def dismiss(self) -> None:
        """Kill it and all that it started."""
        self.writer.close()
        if not self.exited.done():
            process_tree.kill_tree(self.pid)

    async def cause_of_death(self) -> tuple[RewardStatus, str]:
        """What its task comes to, and why; known within a moment of its end."""
        try:
            async with asyncio.timeout(1):
                code = await asyncio.shield(self.exited)
        except TimeoutError:
            return RewardStatus.ERROR, "the reward function closed its worker's connection"
        if self.killed_for is not None:
            return self.killed_for
        if code == -signal.SIGKILL:
            return RewardStatus.OOM, "the worker was killed from outside, most likely by the kernel for want of memory"
        if code < 0:
            return RewardStatus.ERROR, f"the worker died of {signal.Signals(-code).name}"
        return RewardStatus.ERROR, f"the worker exited with code {code}"


class WorkerProcesses:
    """The children of this process, in its event loop."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._workers: dict[int, Worker] = {}
        self._reaping: asyncio.TimerHandle | None = None

    def reap_when_they_end(self) -> None:
        """From now on, until the loop ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap_soon)
        # One signal that is told of is enough for all that ended; by default Python prints each that did not fit.
        signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)

    async def start(self) -> Worker:
        """A new worker, ready for tasks unless `failure` says why not."""
        worker = await self._fork()
        try:
            async with asyncio.timeout(_START_SECONDS):
                message = await wire.read(worker.reader)
        except TimeoutError:
            worker.failure = f"importing the reward function took more than {_START_SECONDS:g} s: killed"
        else:
            if message is None:
                cause = (await worker.cause_of_death())[1]
                worker.failure = f"while importing the reward function: {cause}"
        return worker

    async def watch(self) -> None:
        """Kill workers that hold or start too much, for good.

        The limit is on resident memory: limits on address space (RLIMIT_AS, RLIMIT_DATA) also count what libraries
        merely reserve, and miss what children hold.
        """
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for worker in [worker for worker in self._workers.values() if worker.is_busy]:
                if excess := self._excess(worker.pid):
                    worker.killed_for = excess
                    process_tree.kill_tree(worker.pid)

    async def end(self) -> None:
        """Kill all of them, and whatever they left behind."""
        deadline = time.monotonic() + _END_SECONDS
        while (left := process_tree.children(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                process_tree.kill_tree(pid)
            await asyncio.sleep(0.01)
            self._reap()

    async def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        parent, clock = os.getpid(), TaskClock()
        pid = os.fork()
        if pid == 0:
            try:
                run_worker(theirs, self._settings, parent, clock)
            except BaseException:
                traceback.print_exc()
                os._exit(70)
            os._exit(0)
        # Known before anything is awaited: `_reap` kills children that are no workers.
        worker = self._workers[pid] = Worker(pid=pid, reader=reader, writer=writer, clock=clock)
        theirs.close()
        return worker

    def _excess(self, pid: int) -> tuple[RewardStatus, str] | None:
        if (count := 1 + len(process_tree.descendants(pid))) > _MOST_PROCESSES:
            return RewardStatus.ERROR, f"started {count} processes, the limit is {_MOST_PROCESSES}: killed"
        limit = self._settings.memory_bytes
        if limit is None or (held := process_tree.exceeds(pid, limit)) is None:
            return None
        return RewardStatus.OOM, f"held {held / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f} MiB: killed"

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

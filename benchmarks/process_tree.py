"""What a program and everything it starts uses: CPU seconds over time, and memory at its peak."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psutil

SAMPLE_SECONDS = 0.2
SAMPLES_PER_MEMORY_READING = 5


class ProcessTree:
    """Runs a command in a context and watches it from the outside; its output goes to a file."""

    def __init__(self, command: Sequence[str], *, environment: dict[str, str], folder: Path, output: Path) -> None:
        self.command = list(command)
        self.environment = environment
        self.folder = folder
        self.output = output
        self.started = 0.0
        self.peak_bytes = 0
        """Most that all processes held at one time; memory they share counts once."""
        self._times: list[float] = []
        self._cpu: list[float] = []
        self._last_seen: dict[tuple[int, float], float] = {}

    def run(self) -> int:
        """Wait for the command to end; its exit code."""
        with self:
            return self._process.wait()

    def cpu_seconds(self, start: float, stop: float) -> float:
        """CPU seconds of all processes between two times of the clock."""
        at = np.interp([start, stop], self._times, self._cpu)
        return float(at[1] - at[0])

    def __enter__(self) -> Self:
        self.started = time.time()
        with self.output.open("wb") as file:
            self._process = subprocess.Popen(
                self.command, stdout=file, stderr=file, env=self.environment, cwd=self.folder
            )
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        count = 0
        while not self._ended.wait(SAMPLE_SECONDS):
            processes = self._processes()
            for process in processes:
                self._read_cpu(process)
            self._times.append(time.time())
            self._cpu.append(sum(self._last_seen.values()))
            if count % SAMPLES_PER_MEMORY_READING == 0:
                self.peak_bytes = max(self.peak_bytes, sum(_proportional_bytes(process.pid) for process in processes))
            count += 1

    def _processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _read_cpu(self, process: psutil.Process) -> None:
        """A process that ends keeps the seconds it was last seen with."""
        try:
            times = process.cpu_times()
            self._last_seen[process.pid, process.create_time()] = times.user + times.system
        except psutil.NoSuchProcess:
            pass


def _proportional_bytes(pid: int) -> int:
    """A process's memory, with its share of what it shares; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

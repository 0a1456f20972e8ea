"""What a program and everything it starts uses: CPU seconds over time, and memory at its peak."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

SAMPLE_SECONDS = 0.25
SAMPLES_PER_MEMORY_READING = 8
"""Adding up the pages of processes of gigabytes takes a tenth of a second."""


class ProcessTree:
    """Runs a command to its end and watches it from the outside; its output goes to a file."""

    def __init__(self, command: Sequence[str], *, environment: dict[str, str], folder: Path, output: Path) -> None:
        self.command = list(command)
        self.environment = environment
        self.folder = folder
        self.output = output
        self.started = 0.0
        self.peak_bytes = 0
        """Most that all processes held at one time; memory they share counts once."""
        self._known: set[psutil.Process] = set()
        self._times: list[float] = []
        self._cpu: list[float] = []

    def run(self) -> int:
        """The exit code of the command."""
        self.started = time.time()
        with (
            self.output.open("wb") as file,
            subprocess.Popen(self.command, stdout=file, stderr=file, env=self.environment, cwd=self.folder) as process,
        ):
            ended = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(process.pid, ended), daemon=True)
            watcher.start()
            try:
                return process.wait()
            finally:
                process.terminate()
                ended.set()
                watcher.join()

    def cpu_seconds(self, start: float, stop: float) -> float:
        """CPU seconds of all processes between two times of the clock."""
        at = np.interp([start, stop], self._times, self._cpu)
        return float(at[1] - at[0])

    def _watch(self, pid: int, ended: threading.Event) -> None:
        count = 0
        while not ended.wait(SAMPLE_SECONDS):
            self._find(pid)
            self._times.append(time.time())
            seconds = sum(_cpu_seconds(process) for process in self._known)
            self._cpu.append(max(seconds, self._cpu[-1] if self._cpu else 0.0))
            if count % SAMPLES_PER_MEMORY_READING == 0:
                self.peak_bytes = max(self.peak_bytes, sum(_proportional_bytes(each.pid) for each in self._known))
            count += 1

    def _find(self, pid: int) -> None:
        """Processes stay known when their parent is gone and they are no longer below the first one."""
        try:
            root = psutil.Process(pid)
            self._known |= {root, *root.children(recursive=True)}
        except psutil.NoSuchProcess:
            pass
        self._known = {process for process in self._known if process.is_running()}


def _cpu_seconds(process: psutil.Process) -> float:
    """Of a process and its children that have ended; 0 if it is gone, and its parent has its seconds."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0


def _proportional_bytes(pid: int) -> int:
    """A process's memory, with its share of what it shares; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

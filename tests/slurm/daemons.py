"""Processes of a test cluster: started, found again by their pid files, and ended; only ever this cluster's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from tests.slurm.layout import Layout

STOP_SECONDS = 15.0
START_SECONDS = 60.0


class ClusterError(Exception):
    """A daemon did not do what it should; the message holds its last words."""


class Daemons:
    """Daemons by name: munged, mariadbd, slurmdbd, slurmctld, slurmd-NODE."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @property
    def environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return {**own, "SLURM_CONF": str(self._layout.slurm_conf)}

    def pid(self, daemon: str) -> int | None:
        """Of the living daemon, else None."""
        try:
            pid = int(self._layout.pid_path(daemon).read_text())
            executable = os.readlink(f"/proc/{pid}/exe")  # a zombie has none
        except (OSError, ValueError):
            return None
        return pid if Path(executable).name.startswith(daemon.split("-")[0]) else None

    def start(self, daemon: str, *command: str, ready: Callable[[], bool] = lambda: True) -> None:
        """Start a daemon that puts itself into the background, unless it lives; return once `ready`."""
        if self.pid(daemon) is not None:
            return
        self._layout.pid_path(daemon).unlink(missing_ok=True)
        self.run(daemon, *command)
        self.wait(lambda: self.pid(daemon) is not None and ready(), f"{daemon} to start", daemon)

    def run(self, name: str, *command: str) -> None:
        """Run a command to its end; what it prints goes to a log of this name."""
        with self._layout.log_path(f"{name}.out").open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd="/", check=False
            )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)} ended with {done.returncode}{self._last_words(name)}")

    def spawn(self, name: str, *command: str) -> None:
        """Start what does not put itself into the background."""
        with self._layout.log_path(f"{name}.out").open("ab") as log:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd="/",
                start_new_session=True,
            )

    def wait(self, is_done: Callable[[], bool], what: str, name: str = "slurmctld") -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_done():
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {START_SECONDS:.0f} s for {what}{self._last_words(name)}")
            time.sleep(0.03)

    def stop(self, *daemons: str) -> None:
        """End daemons together: politely, then not."""
        pids = [pid for pid in map(self.pid, daemons) if pid is not None]
        _signal(pids, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.03)
        self.kill(*daemons, pids=pids)

    def kill(self, *daemons: str, pids: Iterable[int] = ()) -> None:
        """SIGKILL, as when memory or power run out."""
        named = [pid for pid in map(self.pid, daemons) if pid is not None]
        _signal({*pids, *named}, signal.SIGKILL)
        for daemon in daemons:
            self._layout.pid_path(daemon).unlink(missing_ok=True)

    def kill_jobs(self, node: str) -> None:
        """SIGKILL whatever jobs run on a node, with SLURM's process beside each, and what these start meanwhile."""
        while self._kill_jobs_once(node):
            time.sleep(0.02)

    def _kill_jobs_once(self, node: str) -> bool:
        log = self._layout.log_path(f"slurmd-{node}")
        steps = [process for process in psutil.process_iter() if _is_step(process, log)]
        pids = {child.pid for step in steps for child in _children(step)}
        _signal([step.pid for step in steps], signal.SIGKILL)  # first: no word of the jobs' end gets out
        marks = {"SLURM_CONF": str(self._layout.slurm_conf), "SLURMD_NODENAME": node}
        for process in psutil.process_iter():
            environment = _environment(process)
            if process.pid != os.getpid() and all(environment.get(name) == value for name, value in marks.items()):
                pids.add(process.pid)
        _signal(pids, signal.SIGKILL)
        return bool(pids or steps)

    def _last_words(self, name: str) -> str:
        lines: list[str] = []
        for path in (self._layout.log_path(f"{name}.out"), self._layout.log_path(name)):
            if path.exists():
                lines += path.read_text(errors="replace").splitlines()[-8:]
        return "".join(f"\n  {line}" for line in lines)


def _is_step(process: psutil.Process, log: Path) -> bool:
    """slurmstepd names neither node nor cluster, its title lies over its environment, but it writes to slurmd's log."""
    try:
        if not Path(os.readlink(f"/proc/{process.pid}/exe")).name.startswith("slurmstepd"):
            return False
        descriptors = Path(f"/proc/{process.pid}/fd")
        return any(os.readlink(path) == str(log) for path in descriptors.iterdir())
    except OSError:
        return False


def is_running(pid: int) -> bool:
    """Not `kill -0`: a zombie that nobody has asked for yet counts as gone."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}

"""A real SLURM of several nodes on this machine, for tests: `python tests/slurm/cluster.py up --nodes 4`.

Debian's daemons, no systemd, everything below one folder, started in a few seconds as whoever calls. Two clusters may
run at once. What is lost with a node is lost here too: `kill_node` leaves neither its slurmd nor its jobs.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Self

if __package__ in (None, ""):  # called as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.slurm.configuration import write_configuration
from tests.slurm.daemons import ClusterError, Daemons, is_running, listens
from tests.slurm.layout import ClusterSettings, Layout, load, new_layout, node_names
from tests.slurm.packages import ensure_packages

CLEAR_SECONDS = 60.0


class Cluster:
    """A cluster in a folder. As a context manager it is up within and gone after."""

    def __init__(self, layout: Layout, settings: ClusterSettings) -> None:
        self.layout, self.settings = layout, settings
        self.daemons = Daemons(layout)

    @classmethod
    def new(cls, folder: Path, settings: ClusterSettings | None = None) -> Self:
        """Write the configuration of a cluster that is not started yet. PackagesMissing if SLURM is not here."""
        settings = settings or ClusterSettings()
        ensure_packages(accounting=settings.accounting)
        folder.mkdir(parents=True, exist_ok=True)
        layout = new_layout(folder.absolute(), settings)
        write_configuration(layout, settings)
        return cls(layout, settings)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The cluster that another process has made here."""
        return cls(*load(folder.absolute()))

    @property
    def slurm_conf(self) -> str:
        """What SLURM_CONF must be for a client of this cluster."""
        return str(self.layout.slurm_conf)

    @property
    def nodes(self) -> list[str]:
        return node_names(self.settings)

    @property
    def environment(self) -> dict[str, str]:
        """This process's, for a client of this cluster and of no other."""
        return self.daemons.environment

    def up(self) -> Self:
        """Start what does not run; return when all nodes are idle."""
        name_nodes(self.nodes)
        munge = self.layout.folder / "state" / "munge"
        self.daemons.start(
            "munged",
            "munged",
            "--force",  # in a folder that is nobody else's business
            f"--socket={self.layout.socket}",
            f"--key-file={self.layout.key}",
            f"--pid-file={self.layout.pid_path('munged')}",
            f"--log-file={self.layout.log_path('munged')}",
            f"--seed-file={munge / 'seed'}",
        )
        for node in self.nodes:  # they wait for the controller
            self._start_slurmd(node)
        if self.settings.accounting:
            self._start_accounting()
        self.start_controller()
        self.wait_idle()
        return self

    def down(self) -> None:
        """Stop everything; the folder stays, with the logs."""
        slurmds = [f"slurmd-{node}" for node in self.nodes]
        self.daemons.kill(*slurmds)
        for node in self.nodes:
            self.daemons.kill_jobs(node)
        self.daemons.stop("slurmctld", "slurmdbd")
        self.daemons.stop("mariadbd", "munged")
        if self.settings.memory_cgroups:
            remove_cgroups(self.nodes)

    def down_after(self, pid: int) -> None:
        """Stop this cluster when a process is gone, however it ends."""
        command = (sys.executable, __file__, "guard", "--folder", str(self.layout.folder), "--pid", str(pid))
        self.daemons.spawn("guard", *command)

    def __enter__(self) -> Self:
        self.down_after(os.getpid())
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    def kill_node(self, node: str, *, announced: bool = True) -> None:
        """End a node as a power cut does. Unless announced, the controller finds out after SlurmdTimeout."""
        self.daemons.kill(f"slurmd-{node}")
        self.daemons.kill_jobs(node)
        if announced:
            self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")

    def kill_slurmd(self, node: str) -> None:
        """End a node's daemon only: its jobs run on, out of the controller's sight."""
        self.daemons.kill(f"slurmd-{node}")

    def start_node(self, node: str) -> None:
        """Bring a node back; return when it takes jobs."""
        self._start_slurmd(node)
        self.daemons.wait(lambda: self._resumed([node]), f"{node} to be idle", f"slurmd-{node}")

    def stop_controller(self) -> None:
        self.daemons.stop("slurmctld")

    def start_controller(self) -> None:
        self.daemons.start("slurmctld", "slurmctld", ready=lambda: listens(self.layout.controller_port))

    def stop_accounting(self) -> None:
        self.daemons.stop("slurmdbd")

    def start_accounting(self) -> None:
        self.daemons.start("slurmdbd", "slurmdbd", ready=lambda: listens(self.layout.accounting_port))

    def clear(self) -> None:
        """Bring back what a test has ended, cancel all jobs, wait until every node is idle."""
        if self.settings.accounting:
            self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            self._start_slurmd(node)
        deadline = time.monotonic() + CLEAR_SECONDS
        while self.run("squeue", "-h"):
            self._cancel_all()
            if time.monotonic() > deadline:
                raise ClusterError(f"jobs do not go away:\n{self.run('squeue')}")
            time.sleep(0.1)
        self.wait_idle()

    def wait_idle(self) -> None:
        self.daemons.wait(lambda: self._resumed(self.nodes), "all nodes to be idle")

    def run(self, *command: str, check: bool = True) -> str:
        """What one of SLURM's commands prints, as a client of this cluster."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _start_slurmd(self, node: str) -> None:
        # Its name, as jobs have it: what it has just started for one of them is then known by it, too.
        self.daemons.start(f"slurmd-{node}", "env", f"SLURMD_NODENAME={node}", "slurmd", "-N", node)

    def _start_accounting(self) -> None:
        configuration, is_new = self.layout.slurm_conf.with_name("my.cnf"), False
        if self.daemons.pid("mariadbd") is None:
            is_new = not (self.layout.folder / "state" / "database" / "mysql").exists()
            options = ("--auth-root-authentication-method=normal", "--skip-test-db")
            if is_new:
                self.daemons.run("database", "mariadb-install-db", f"--defaults-file={configuration}", *options)
            self.daemons.spawn("mariadbd", "mariadbd", f"--defaults-file={configuration}")
            self.daemons.wait(lambda: listens(self.layout.database_port), "mariadbd to start", "mariadbd")
        self.start_accounting()
        if is_new:
            entries = self.layout.slurm_conf.with_name("associations")
            self.daemons.run("sacctmgr", "sh", "-c", f"sacctmgr -i < {entries}")

    def _resumed(self, nodes: list[str]) -> bool:
        """Whether all are idle; those left down or drained are told to come back."""
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-n", ",".join(nodes), "-o", "%N %T", check=False)
        lines = [line.split() for line in states.splitlines()]
        for node, state in lines:
            if state.rstrip("*$") in ("down", "drained", "draining", "fail"):
                self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return sorted(lines) == sorted([node, "idle"] for node in nodes)

    def _cancel_all(self) -> None:
        user = getpass.getuser()
        self.run("scancel", "--full", "--signal=KILL", "-u", user, "--state=RUNNING", check=False)
        self.run("scancel", "--full", "-u", user, check=False)


def name_nodes(nodes: list[str]) -> None:
    """Make the nodes' names, and the machine's own, lead to the loopback, where this user may say so."""
    for name in (*nodes, socket.gethostname()):
        try:
            socket.gethostbyname(name)
        except OSError:
            with suppress(PermissionError), Path("/etc/hosts").open("a") as hosts:
                hosts.write(f"127.0.0.1 {name}\n")


def remove_cgroups(nodes: list[str]) -> None:
    """SLURM leaves its empty ones behind."""
    for node in nodes:
        for folder, _, _ in os.walk(f"/sys/fs/cgroup/memory/slurm_{node}", topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def guard(folder: Path, pid: int) -> None:
    """Wait for a process to end; then stop its cluster, if it has not done so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while is_running(pid):
        time.sleep(0.5)
    if (folder / "cluster.json").exists():
        Cluster.open(folder).down()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A real SLURM of several nodes on this machine, for tests.")
    actions = ("up", "down", "env", "clear", "kill-node", "kill-slurmd", "start-node", "guard")
    parser.add_argument("action", choices=(*actions, "stop-controller", "start-controller"))
    parser.add_argument("node", nargs="?", help="for kill-node, kill-slurmd, start-node")
    default = Path(tempfile.gettempdir()) / f"test-cluster-{getpass.getuser()}"
    parser.add_argument("--folder", type=Path, default=default, help="of everything; another one, another cluster")
    parser.add_argument("--pid", type=int, help="for guard: stop the cluster when this process is gone")
    for knob in fields(ClusterSettings):
        flag, value = f"--{knob.name.replace('_', '-')}", knob.default
        if isinstance(value, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=value)
        else:
            parser.add_argument(flag, type=type(value), default=value, help=f"default: {value}")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Do one action, such as `up`; `eval "$(... env)"` makes a shell a client."""
    given = parse(words)
    if given.action == "guard":
        guard(given.folder, given.pid)
    elif given.action == "up":
        known = (given.folder / "cluster.json").exists()
        settings = ClusterSettings(**{knob.name: getattr(given, knob.name) for knob in fields(ClusterSettings)})
        cluster = Cluster.open(given.folder) if known else Cluster.new(given.folder, settings)
        print(f"export SLURM_CONF={cluster.up().slurm_conf}")
    else:
        act(Cluster.open(given.folder), given.action, given.node)
    return 0


def act(cluster: Cluster, action: str, node: str | None) -> None:
    if action == "env":
        print(f"export SLURM_CONF={cluster.slurm_conf}")
    elif action == "down":
        cluster.down()
        shutil.rmtree(cluster.layout.folder)
    elif node is None:
        getattr(cluster, action.replace("-", "_"))()
    else:
        getattr(cluster, action.replace("-", "_"))(node)


if __name__ == "__main__":
    sys.exit(main())

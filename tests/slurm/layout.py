"""What a test cluster is like, and where its parts are: settings, paths, ports."""

from __future__ import annotations

import json
import random
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

LONGEST_FOLDER = 60
"""Sockets of a longer folder would not fit the 107 bytes that a Unix socket's path may have."""

PORTS = range(16000, 20000)
"""Below the ports that the kernel gives to whoever asks for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Knobs of a cluster; times in seconds, memory in MB."""

    nodes: int = 4
    cpus: int = 2
    """Of each node; more than the machine has is fine."""
    memory: int = 4000
    gpus: int = 4
    """Of each node; device files that nothing stands behind."""
    accounting: bool = True
    """MariaDB and slurmdbd; without, `sacct` fails as on many a small cluster."""
    max_array_size: int = 1001
    max_job_count: int = 10000
    min_job_age: int = 300
    """How long the controller remembers a job that has ended."""
    over_memory_kill: bool = True
    slurmd_timeout: int = 10
    """How long a node may be silent before it is DOWN."""
    grace_time: int = 10
    """What a preempted job of partition `low` has left."""
    credential_seconds: int = 5
    """A requeued job waits this and one more. SLURM takes less than 5 for a mistake, and uses 120."""
    memory_cgroups: bool = False
    """The kernel enforces memory limits: steps end OUT_OF_MEMORY. Needs a writable tree of cgroup v1."""
    extra: str = ""
    """More lines of slurm.conf."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path of a cluster, and its ports."""

    folder: Path
    first_port: int
    first_job: int

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "munge.sock"

    @property
    def key(self) -> Path:
        return self.folder / "state" / "munge" / "key"

    @property
    def controller_port(self) -> int:
        return self.first_port

    @property
    def accounting_port(self) -> int:
        return self.first_port + 1

    @property
    def database_port(self) -> int:
        return self.first_port + 2

    def node_port(self, index: int) -> int:
        return self.first_port + 2 + index

    def pid_path(self, daemon: str) -> Path:
        return self.folder / "run" / f"{daemon}.pid"

    def log_path(self, daemon: str) -> Path:
        return self.folder / "log" / f"{daemon}.log"

    def spool(self, node: str) -> Path:
        return self.folder / "state" / "spool" / node


def node_names(settings: ClusterSettings) -> list[str]:
    return [f"node{index}" for index in range(1, settings.nodes + 1)]


def new_layout(folder: Path, settings: ClusterSettings) -> Layout:
    """Paths below `folder` and ports that are free now. Job ids start anywhere, as no two clusters' should agree."""
    if len(str(folder)) > LONGEST_FOLDER or any(character.isspace() for character in str(folder)):
        raise ValueError(f"{folder}: sockets need a folder of at most {LONGEST_FOLDER} characters without spaces")
    return Layout(folder, _free_ports(settings.nodes + 3), random.randrange(1, 6000) * 10_000 + 1)


def save(layout: Layout, settings: ClusterSettings) -> None:
    record = {"settings": asdict(settings), "first_port": layout.first_port, "first_job": layout.first_job}
    (layout.folder / "cluster.json").write_text(json.dumps(record, indent=1))


def load(folder: Path) -> tuple[Layout, ClusterSettings]:
    record = json.loads((folder / "cluster.json").read_text())
    return Layout(folder, record["first_port"], record["first_job"]), ClusterSettings(**record["settings"])


def _free_ports(count: int) -> int:
    """The first of a run of ports that nobody listens on."""
    for _ in range(200):
        first = random.randrange(PORTS.start, PORTS.stop - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} neighbouring ports of {PORTS.start} to {PORTS.stop} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

"""Facts about the machine that asks: Python and packages, room on the disk, ports, what keeps jobs off the network.

`doctor` collects them here and, by a small job, on a compute node.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from slime_stages.slurm.environment import OFFLINE

EXTRAS = ("rollout", "reward", "train", "slurm")
PROGRAMS = {"chain": "slime_stages.launch.chain", "serve": "slime_stages.launch.serve"}
"""Stages whose program is not `stages.STAGE.run`."""
PORTS_TRIED = 32
"""Engines, routers and the trainer's processes open about as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one machine is like, for one Python."""

    host: str
    python: str
    """Version of Python."""
    executable: str
    packages: dict[str, str]
    """Version of each package that slime-stages asks for and that is installed."""
    broken_imports: dict[str, str] = field(default_factory=dict)
    """The error of each stage's program that cannot be imported."""
    offline: dict[str, str] = field(default_factory=dict)
    """Variables that keep the libraries off the network, as set."""
    port_error: str | None = None
    name_error: str | None = None
    """Why the machine's own name does not lead to it."""
    submit_error: str | None = None
    """Why jobs cannot be submitted from there; None if they can, or if nobody asked."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Room:
    """What is free in a folder's file system; None: it has no limit that it tells."""

    bytes: int
    inodes: int | None


def collect_facts(stages: Sequence[str] = (), *, submit_error: str | None = None) -> Facts:
    """The facts of this machine; imports the programs of `stages` to see whether that works."""
    return Facts(
        host=socket.gethostname(),
        python=platform.python_version(),
        executable=sys.executable,
        packages=installed_packages(),
        broken_imports=_broken_imports(stages),
        offline={name: os.environ[name] for name in OFFLINE if name in os.environ},
        port_error=_port_error(),
        name_error=_name_error(),
        submit_error=submit_error,
    )


def installed_packages() -> dict[str, str]:
    """Version of slime-stages, and of what it asks for, as far as it is installed."""
    versions = {}
    for name in ("slime-stages", *_required()):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def room_in(folder: Path) -> Room:
    usage = os.statvfs(folder)
    return Room(usage.f_bavail * usage.f_frsize, usage.f_favail if usage.f_files else None)


def _required() -> list[str]:
    try:
        lines = metadata.requires("slime-stages") or []
    except metadata.PackageNotFoundError:
        return []
    names = []
    for line in lines:
        extra = re.search(r"extra == ['\"](\w[\w-]*)['\"]", line)
        name = re.match(r"[\w.-]+", line)
        if name and (extra is None or extra[1] in EXTRAS):
            names.append(name[0])
    return list(dict.fromkeys(names))


def _broken_imports(stages: Sequence[str]) -> dict[str, str]:
    broken = {}
    for stage in stages:
        try:
            import_module(PROGRAMS.get(stage, f"stages.{stage}.run"))
        except Exception as error:  # whatever a package does when it is loaded
            broken[stage] = f"{type(error).__name__}: {error}"
    return broken


def _port_error() -> str | None:
    with ExitStack() as stack:
        try:
            for _ in range(PORTS_TRIED):
                stack.enter_context(socket.socket()).bind(("", 0))
        except OSError as error:
            return str(error)
    return None


def _name_error() -> str | None:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        return f"{socket.gethostname()}: {error.strerror or error}"
    return None

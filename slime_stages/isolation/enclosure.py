"""What a program that is shut in sees of the machine, and how much of it it may use."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""The machine's programs and libraries: what a program sees, read-only, where no image is given."""

SETTINGS = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl",
)
"""Files of /etc that those programs read and that tell nothing of people and networks."""

NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
"""What finding another machine takes: seen only with a network."""

KERNEL_CONTROLS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Files below /proc that steer the whole machine: where the user outside is root, they ask for no further right."""

USER = 1000
"""The number of the one user within, who owns nothing outside of the scratch folders."""

WRITTEN = {
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{USER}:{USER}:agent:/home/agent:/bin/sh\n",
    "/etc/group": f"root:x:0:\nagent:x:{USER}:\n",
}
"""Files that are made for the program, in place of the machine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A path of the machine that is seen within."""

    source: str
    """On the machine; its links are followed when the enclosure is built."""
    target: str
    """Within."""
    writable: bool = False
    """Whether programs may change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A view of the machine, and limits; it can be sent to another process as JSON."""

    image: str | None = None
    """A folder that holds a whole system, seen as `/`; changes to it go to memory and away. None: the machine's own."""
    binds: tuple[Bind, ...] = ()
    """What else is seen. No other path of the machine is."""
    scratch: tuple[str, ...] = ("/tmp",)
    """Folders within that may be written to, in memory; they go with the enclosure."""
    scratch_bytes: int = 64 << 20
    """For all of them together, and for changes to the image."""
    scratch_files: int = 4096
    """Files and folders in them."""
    has_network: bool = False
    """Whether it shares the machine's network; otherwise nothing but a loopback of its own."""
    memory_bytes: int | None = None
    """Resident memory of all its processes; the largest is killed when they hold more. None: no limit."""
    process_count: int = 256
    """Processes, and threads where the kernel counts them."""
    open_files: int = 4096
    """Of one process."""
    seconds: float | None = None
    """Wall clock from its start to its end. None: as long as its owner lives."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Enclosure:
        values = json.loads(text)
        binds = tuple(Bind(**bind) for bind in values.pop("binds"))
        return Enclosure(**{**values, "scratch": tuple(values.pop("scratch")), "binds": binds})


@dataclass(frozen=True, slots=True)
class View:
    """The paths of an enclosure as both ways in mount them, parents before children."""

    links: dict[str, str] = field(default_factory=dict)
    """Links within, and where they point."""
    binds: tuple[Bind, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    """Files that are written, and their content."""


def view_of(enclosure: Enclosure) -> View:
    """What stands in the enclosure beside its image and scratch folders."""
    names = NAMES if enclosure.has_network else ()
    own = [
        Bind(source=os.path.realpath(bind.source), target=bind.target, writable=bind.writable)
        for bind in enclosure.binds
    ]
    if enclosure.image is not None:
        return View(binds=(*_present(names), *_in_order(own)))
    links = {path: os.readlink(path) for path in SYSTEM if os.path.islink(path)}
    system = _present(path for path in SYSTEM if path not in links)
    settings = _present((*SETTINGS, *names))
    files = {**WRITTEN, **({} if enclosure.has_network else {"/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n"})}
    return View(links, (*system, *settings, *_in_order(own)), files)


def python_binds() -> tuple[Bind, ...]:
    """This Python with its packages, and folders of libraries that it has loaded from elsewhere."""
    with open("/proc/self/maps") as file:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in file if ".so" in line}
    folders = {sys.prefix, sys.base_prefix, *(os.path.dirname(path) for path in mapped if path.startswith("/"))}
    kept: list[str] = []
    for folder in sorted(folders):
        if not any(f"{folder}/".startswith(f"{above}/") for above in (*SYSTEM, *kept)):
            kept.append(folder)
    return tuple(Bind(source=folder, target=folder) for folder in kept)


def _present(paths: Iterable[str]) -> list[Bind]:
    return [Bind(source=os.path.realpath(path), target=path) for path in paths if os.path.exists(path)]


def _in_order(binds: list[Bind]) -> list[Bind]:
    return sorted(binds, key=lambda bind: bind.target.count("/"))

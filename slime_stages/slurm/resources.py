"""What a job asks for, as far as its header says it; what the header leaves to the cluster is not known."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from slime_stages.slurm.header import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Of one job, or of one task of an array, over all its nodes. None: the header does not say."""

    nodes: int = 1
    processes: int = 1
    cpus: int | None = None
    gpus: int | None = 0
    memory: str | None = None
    """In sbatch's words: `64G`, `4G a core`."""
    seconds: int | None = None
    """Its time limit."""
    partition: str | None = None

    @property
    def gpu_hours(self) -> float | None:
        """Most that it can use, by its time limit."""
        return _hours(self.gpus, self.seconds)

    @property
    def cpu_hours(self) -> float | None:
        return _hours(self.cpus, self.seconds)


def resources_of(header: Header) -> Resources:
    """What cannot be read is None, never an error: sbatch itself judges the options."""
    options = {name: str(value) for name, value in header.directives.items() if value is not True}
    nodes = count_of(options.get("nodes", "1").partition("-")[2] or options.get("nodes", "1")) or 1
    per_node = count_of(options.get("ntasks-per-node", "")) or 1
    processes = count_of(options.get("ntasks", "")) or nodes * per_node
    each = count_of(options.get("cpus-per-task", "1"))
    return Resources(
        nodes=nodes,
        processes=processes,
        cpus=None if each is None or "exclusive" in header.directives else each * processes,
        gpus=_gpus(options, nodes, processes),
        memory=_memory(options),
        seconds=parse_time(options.get("time", "")),
        partition=options.get("partition"),
    )


def _gpus(options: dict[str, str], nodes: int, processes: int) -> int | None:
    """0 where nothing asks for any."""
    for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gpus-per-task", processes)):
        if name in options:
            counts = [count_of(part.rpartition(":")[2]) for part in options[name].split(",")]
            return None if None in counts else times * sum(count or 0 for count in counts)
    if "gpus-per-socket" in options:
        return None
    kinds = [part for part in options.get("gres", "").split(",") if re.match(r"gpu\b", part)]
    counts = [1 if part == "gpu" else count_of(re.sub(r"\(.*", "", part).rpartition(":")[2]) or 1 for part in kinds]
    return nodes * sum(count or 0 for count in counts)


def _memory(options: dict[str, str]) -> str | None:
    units = {"mem": "", "mem-per-cpu": " a core", "mem-per-gpu": " a GPU"}
    return next((f"{options[name]}{unit}" for name, unit in units.items() if name in options), None)


def count_of(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def parse_time(text: str) -> int | None:
    """Seconds of sbatch's `90`, `30:00`, `02:00:00`, `1-12`, `1-12:00:00`; None for `UNLIMITED` and the like."""
    days, dash, rest = text.rpartition("-")
    if not re.fullmatch(r"\d+(:\d+){0,2}", rest) or (dash and not days.isdigit()):
        return None
    parts = [int(part) for part in rest.split(":")]
    if dash:  # hours[:minutes[:seconds]]
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) == 1:
        return parts[0] * 60
    hours, minutes, seconds = [0, *parts][-3:]
    return (hours * 60 + minutes) * 60 + seconds


def clock(seconds: float) -> str:
    """`02:00:00`, or `1-12:00:00` for a day and more, as sbatch reads it."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"


def _hours(count: int | None, seconds: int | None) -> float | None:
    if count == 0:
        return 0.0
    return None if count is None or seconds is None else count * seconds / 3600

"""Engines of other jobs, by the files they leave: `engines/<name>.json` in the run directory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from slime_stages.errors import SlimeStagesError
from slime_stages.serving.handle import EngineHandle

PROBE_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What an engine says about itself when it is up."""

    name: str

    url: str

    pid: int
    """Of the process that ends the engine when it ends."""

    host: str

    started: float
    """Seconds since 1970."""

    weight_version: str | None = None
    """At the start; the engine itself knows what it has now."""


def register_engine(folder: Path, name: str, *, url: str, pid: int, weight_version: str | None = None) -> Path:
    """Write `<name>.json` so that a reader sees the whole record or none."""
    record = EngineRecord(
        name=name, url=url, pid=pid, host=socket.gethostname(), started=time.time(), weight_version=weight_version
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    temporary = folder / f".tmp-{name}-{record.host}-{os.getpid()}"
    temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def find_engines(folder: Path) -> list[EngineRecord]:
    """The engines registered in `folder` that answer now, by name."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = EngineRecord(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            continue
        with contextlib.suppress(SlimeStagesError):
            EngineHandle(record.url, timeout_seconds=PROBE_TIMEOUT_SECONDS).version()
            records.append(record)
    return records

"""Engines that somebody keeps for this run, by the files they leave: `engines/<name>.json` in the run directory."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slime_stages.errors import SlimeStagesError
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.served import Served

PROBE_TIMEOUT_SECONDS = 10.0
SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What an engine, or a fleet with its router, says about itself when it is up."""

    name: str

    url: str
    """Where requests go."""

    pid: int
    """Of the process that ends the engines when it ends."""

    host: str

    started: float
    """Seconds since 1970."""

    weight_version: str | None = None
    """At the start; the engine itself knows what it has now."""

    kind: str = "warm"
    """`service`: kept by `slime-stages serve`."""

    engine_count: int = 1

    engine_urls: tuple[str, ...] = ()
    """The engines that generate."""

    updated_urls: tuple[str, ...] = ()
    """Those that get newer weights; empty: `url` is the only engine."""

    model_urls: dict[str, str] = field(default_factory=dict)
    """By the models' names in `sglang_config`."""

    has_gpus: bool = False

    job_id: str | None = None
    """Of the SLURM job that keeps them."""

    def handles(self) -> list[EngineHandle]:
        """The engines that get newer weights."""
        return [EngineHandle(url) for url in self.updated_urls or (self.url,)]

    def served(self, weight_version: str | None) -> Served:
        return Served(
            urls=(self.url,),
            engine_count=self.engine_count,
            engine_urls=self.engine_urls or (self.url,),
            model_urls=dict(self.model_urls),
            weight_version=weight_version,
        )


def register_engine(
    folder: Path, name: str, *, url: str, pid: int, weight_version: str | None = None, kind: str = "warm"
) -> Path:
    """Write the record of a single engine."""
    return _write(folder, _record(name, url=url, pid=pid, weight_version=weight_version, kind=kind))


def register_fleet(
    folder: Path,
    name: str,
    served: Served,
    *,
    updated_urls: Sequence[str],
    kind: str,
    weight_version: str,
    has_gpus: bool = False,
) -> Path:
    """Write the record of a fleet that this process keeps."""
    record = _record(
        name,
        url=served.urls[0],
        pid=os.getpid(),
        weight_version=weight_version,
        kind=kind,
        engine_count=served.engine_count,
        engine_urls=tuple(served.engine_urls),
        updated_urls=tuple(updated_urls),
        model_urls=dict(served.model_urls),
        has_gpus=has_gpus,
        job_id=os.environ.get("SLURM_JOB_ID"),
    )
    return _write(folder, record)


def find_engines(folder: Path, *, kind: str | None = None) -> list[EngineRecord]:
    """The records in `folder` whose engines answer now, by name."""
    records = []
    for record in read_records(folder):
        if kind not in (None, record.kind) or _is_elsewhere(record):
            continue
        with contextlib.suppress(SlimeStagesError):
            for url in record.updated_urls or (record.url,):
                EngineHandle(url, timeout_seconds=PROBE_TIMEOUT_SECONDS).version()
            records.append(record)
    return records


def read_records(folder: Path) -> list[EngineRecord]:
    """All records in `folder`, whether anybody answers or not."""
    records = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            for name in ("engine_urls", "updated_urls"):
                values[name] = tuple(values.get(name, ()))
            records.append(EngineRecord(**values))
    return records


def _record(name: str, **values: Any) -> EngineRecord:
    return EngineRecord(name=name, host=socket.gethostname(), started=time.time(), **values)


def _write(folder: Path, record: EngineRecord) -> Path:
    """So that a reader sees the whole record or none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.name}.json"
    temporary = folder / f".tmp-{record.name}-{record.host}-{os.getpid()}"
    temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _is_elsewhere(record: EngineRecord) -> bool:
    """Whether the address is another machine's own: here somebody else may listen on it."""
    host = urlsplit(record.url).hostname or ""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    return is_local and record.host != socket.gethostname()

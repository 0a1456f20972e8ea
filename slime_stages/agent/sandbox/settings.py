"""What a sandbox is made of and may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slime_stages.isolation.enclosure import Bind


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The same for every kind of sandbox; a kind says at once which of these it cannot hold."""

    image: str | None = None
    """A folder with a whole system, a SIF file, or the name of a template. None: this machine's programs, read-only."""
    workdir: str = "/workspace"
    """Where commands start; a scratch folder if the image has none of that name."""
    binds: tuple[Bind, ...] = ()
    """Paths of this machine that are seen within. No other is."""
    network: Literal["none", "host"] = "none"
    """`none`: what `reach` is asked for, and nothing else."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment of all commands. Nothing of this process's own environment is seen within."""
    disk_bytes: int = 1 << 30
    """For all that is written within; it is held in memory."""
    file_count: int = 200_000
    """Files and folders that are written within."""
    memory_bytes: int | None = 4 << 30
    """Resident memory of all processes together."""
    process_count: int = 256
    """Processes, and threads where the kernel counts them."""
    lifetime_seconds: float = 3600
    """After that all of it ends, whatever it does."""
    output_bytes: int = 4 << 20
    """Of a command's stdout, and of its stderr, that are kept."""
    log: Path | None = None
    """A file that gets one line of JSON for each command."""

"""All that one call of sbatch depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_stages.run.rundir import RunDir
from slime_stages.slurm.header import Header
from slime_stages.slurm.jobs import Attempt
from slime_stages.slurm.names import SIGNAL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """An attempt with all that its script depends on."""

    run: RunDir
    attempt: Attempt
    header: Header
    dependencies: Sequence[str] = ()
    """Ids of jobs that have to end first, however they end."""
    exclude: Sequence[str] = ()
    """Nodes to keep away from, besides the header's."""
    array_parallelism: int | None = None
    """How many tasks of an array may run at once; None: as many as there is room for."""
    signal_seconds: int = SIGNAL_SECONDS
    folder: Path | None = None
    """Where the job starts; None: the current folder, as with sbatch."""

    @property
    def is_array(self) -> bool:
        return len(self.attempt.shards) > 1

    @property
    def working_folder(self) -> Path:
        return (self.folder or Path.cwd()).absolute()

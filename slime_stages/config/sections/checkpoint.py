"""[checkpoint]: what a run keeps on disk."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from slime_stages.config.types import Section


class Checkpoint(Section):
    title: ClassVar[str] = "what a run keeps on disk"

    save_interval: PositiveInt | None = None
    """Keep the checkpoint and weights of every so many iterations for good, besides the newest."""

    keep_checkpoints: PositiveInt = 2
    """Newest checkpoints to keep: weights with optimizer state."""

    keep_weights: PositiveInt = 4
    """Newest published weight versions to keep."""

    async_save: bool = True
    """Write the checkpoint while the trainer already goes on."""

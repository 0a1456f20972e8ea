"""Turn a torch_dist checkpoint, of any parallel layout, into a Hugging Face folder that appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

from slime_stages.errors import UsageError
from slime_stages.progress import Progress
from slime_stages.run.commit import fsync_path
from slime_stages.weights.export import ExportReport, export_hf
from slime_stages.weights.folders import fsync_folder
from slime_stages.weights.publish import unpublished_folder


def refuse_existing(target: Path) -> None:
    """UsageError if something lies where converted weights are to go."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UsageError(f"{target} exists, and is not overwritten", hint=f"name another folder, or: rm -r {target}")


def convert_to_huggingface(
    checkpoint: Path, template: Path, target: Path, *, dtype: str | None = None, max_shard_bytes: int = 5 << 30
) -> ExportReport:
    """Write the checkpoint's weights with the template's config and tokenizer, tensor by tensor."""
    refuse_existing(target)
    with unpublished_folder(target) as folder:
        with Progress(f"convert {checkpoint.name}", total=None, unit="tensors") as progress:
            report = export_hf(
                checkpoint,
                template,
                folder,
                dtype=dtype,
                max_shard_bytes=max_shard_bytes,
                on_tensor=progress.advance,
            )
        fsync_folder(folder)
        folder.rename(target)
        fsync_path(target.parent)
    return report

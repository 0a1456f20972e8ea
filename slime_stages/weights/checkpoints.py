"""The folder of torch_dist checkpoints, as Megatron lays it out, and what is complete in it. Needs no torch.

`iter_0000013/checkpoint.json` says which parts are there. It appears with the model's weights alone (a whole torch_dist
checkpoint of the model, which other stages may read) and is replaced once the optimiser's state has joined them. Only
then can training resume from the folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slime_stages.commit import replace_file
from slime_stages.errors import DataError, MissingInputError
from slime_stages.weights.folders import kept_numbers, numbered_folders, remove_dead_folders, remove_folder

TRACKER = "latest_checkpointed_iteration.txt"
RECORD = "checkpoint.json"
MODEL = "model"
OPTIMIZER = "optimizer"

_ITERATION_FOLDER = r"iter_(\d{7,})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """What one checkpoint folder holds."""

    iteration: int

    parts: list[str]
    """`model`, and `optimizer` once training can resume from the folder."""

    layout: dict[str, int]
    """Sizes of the parallel groups that wrote it: `tensor`, `pipeline`, `context`, `expert`, `data`."""

    file_bytes: dict[str, int]
    """Size of each data file, so that a truncated one is noticed before it is loaded."""


def iteration_folder(folder: Path, iteration: int) -> Path:
    return folder / f"iter_{iteration:07d}"


def read_record(checkpoint: Path) -> CheckpointRecord | None:
    """The record of a checkpoint folder; None if there is none, as in checkpoints that Megatron itself wrote."""
    try:
        values: dict[str, Any] = json.loads((checkpoint / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    return CheckpointRecord(**values)


def write_record(checkpoint: Path, record: CheckpointRecord) -> None:
    replace_file(checkpoint / RECORD, json.dumps(asdict(record), indent=1).encode())


def has_weights(checkpoint: Path) -> bool:
    """Whether the model's weights can be read."""
    record = read_record(checkpoint)
    return (checkpoint / "metadata.json").is_file() if record is None else MODEL in record.parts


def is_complete(checkpoint: Path) -> bool:
    """Whether training can resume from the folder."""
    record = read_record(checkpoint)
    return (checkpoint / "metadata.json").is_file() if record is None else OPTIMIZER in record.parts


def check_checkpoint(checkpoint: Path, *, part: str = MODEL) -> None:
    """Refuse a folder that lacks the part, or one of whose files was truncated."""
    hint = "rerun the train stage of that iteration"
    if not checkpoint.is_dir():
        raise MissingInputError(f"checkpoint {checkpoint} is missing", hint=hint)
    if not (is_complete(checkpoint) if part == OPTIMIZER else has_weights(checkpoint)):
        raise MissingInputError(f"checkpoint {checkpoint} is without its {part} state", hint=hint)
    record = read_record(checkpoint)
    for name, size in (record.file_bytes if record else {}).items():
        path = checkpoint / name
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise DataError(f"{path} has {found} bytes, {size} were written", hint=hint)


def latest_iteration(folder: Path) -> int | None:
    """The iteration to resume from: the tracker's if it is complete, otherwise the newest complete one."""
    complete = [number for number, path in numbered_folders(folder, _ITERATION_FOLDER).items() if is_complete(path)]
    try:
        tracked = int((folder / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        tracked = -1
    return tracked if tracked in complete else max(complete, default=None)


def write_tracker(folder: Path, iteration: int) -> None:
    replace_file(folder / TRACKER, str(iteration).encode())


def prune_checkpoints(folder: Path, keep_last: int, keep_every: int | None, needed: set[int]) -> list[Path]:
    """Delete checkpoints that retention does not keep, and incomplete ones older than a complete one; returns them."""
    found = numbered_folders(folder, _ITERATION_FOLDER)
    complete = [number for number, path in found.items() if is_complete(path)]
    newest = max(complete, default=-1)
    kept = kept_numbers(complete, keep_last=keep_last, keep_every=keep_every, needed=needed) | needed
    removed = [path for number, path in found.items() if number not in kept and number <= newest]
    for path in removed:
        remove_folder(path)
    remove_dead_folders(folder)
    return removed

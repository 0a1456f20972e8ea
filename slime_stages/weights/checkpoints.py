"""The folder of torch_dist checkpoints, as Megatron lays it out, and what is complete in it. Needs no torch.

`iter_0000013/checkpoint.json` says which parts are there. It appears with the model's weights alone (a whole torch_dist
checkpoint of the model, which other stages may read) and is replaced once the optimiser's state has joined them. Only
then can training resume from the folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.commit import replace_file
from slime_stages.run.digest import digest_file, sealed, unsealed
from slime_stages.weights.folders import kept_numbers, numbered_folders, remove_dead_folders, remove_folder

TRACKER = "latest_checkpointed_iteration.txt"
RECORD = "checkpoint.json"
MODEL = "model"
OPTIMIZER = "optimizer"
CRITIC_CONTENT = "critic_content"
"""Where the manifest of a training names the digest of the critic's parameters."""
RELEASE = "release"
"""Megatron's name for a checkpoint of weights alone, which no iteration of training made."""
METADATA = ".metadata"
"""Where torch_dist says what lies where."""
HINT = "rerun the train stage of that iteration"

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

    digests: dict[str, str] = field(default_factory=dict)
    """xxh3-128 of each file, in hex, the ones beside the data included."""

    content: str = ""
    """Digest of the parameters, as the manifest of the training names it; empty if it is not known."""


def critic_checkpoints(folder: Path) -> Path:
    """Where the critic's checkpoints are, beside those of the policy."""
    return folder / "critic"


def iteration_folder(folder: Path, iteration: int) -> Path:
    return folder / f"iter_{iteration:07d}"


def read_record(checkpoint: Path) -> CheckpointRecord | None:
    """The record of a checkpoint folder; None if there is none, as in checkpoints that Megatron itself wrote."""
    try:
        values = json.loads((checkpoint / RECORD).read_bytes())
        return CheckpointRecord(**unsealed(values, checkpoint / RECORD))
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{checkpoint / RECORD} is not whole: {error}", hint=HINT) from error


def write_record(checkpoint: Path, record: CheckpointRecord) -> None:
    replace_file(checkpoint / RECORD, json.dumps(sealed(asdict(record)), indent=1).encode())


def has_weights(checkpoint: Path) -> bool:
    """Whether the model's weights can be read."""
    return MODEL in _parts(checkpoint)


def is_complete(checkpoint: Path) -> bool:
    """Whether training can resume from the folder."""
    return OPTIMIZER in _parts(checkpoint)


def check_checkpoint(checkpoint: Path, *, part: str = MODEL) -> None:
    """Refuse a folder that lacks the part, or one of whose files was truncated."""
    if not checkpoint.is_dir():
        raise MissingInputError(f"checkpoint {checkpoint} is missing", hint=HINT)
    record = read_record(checkpoint)
    if part not in _parts(checkpoint):
        raise MissingInputError(f"checkpoint {checkpoint} is without its {part} state", hint=HINT)
    for name, size in (record.file_bytes if record else {}).items():
        path = checkpoint / name
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise DataError(f"{path} has {found} bytes, {size} were written", hint=HINT)


def verify_checkpoint(checkpoint: Path, *, part: str = MODEL, share: tuple[int, int] = (0, 1)) -> None:
    """`check_checkpoint`, and the content of the part's files against their digests.

    A share (k, n) is every n-th of the files, from the k-th on: n processes read all of them together.
    """
    check_checkpoint(checkpoint, part=part)
    record = read_record(checkpoint)
    digests = record.digests if record else {}
    names = sorted(name for name in digests if part == OPTIMIZER or not name.startswith(OPTIMIZER))
    for name in names[share[0] :: share[1]]:
        if digest_file(checkpoint / name) != digests[name]:
            raise DataError(f"{checkpoint / name} was altered since it was written", hint=HINT)


def check_content(checkpoint: Path, content: str) -> None:
    """Refuse the checkpoint of another training than the one whose manifest names `content`."""
    record = read_record(checkpoint)
    if record is not None and record.content and record.content != content:
        raise DataError(
            f"checkpoint {checkpoint} holds parameters with digest {record.content}, {content} were committed",
            hint=HINT,
        )


def complete_iterations(folder: Path) -> list[int]:
    """The iterations from whose checkpoints training can resume, in order."""
    return [number for number, path in numbered_folders(folder, _ITERATION_FOLDER).items() if is_complete(path)]


def latest_iteration(folder: Path) -> int | None:
    """The iteration to resume from: the tracker's if it is complete, otherwise the newest complete one."""
    complete = complete_iterations(folder)
    try:
        tracked = int((folder / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        tracked = -1
    return tracked if tracked in complete else max(complete, default=None)


def find_weights(folder: Path, step: int | None = None) -> Path:
    """The checkpoint that a person means: the folder itself, or number `step` of those in it, or the newest one."""
    if (folder / METADATA).is_file() and step is None:
        return folder
    number = latest_iteration(folder) if step is None else step
    if number is not None:
        candidates = [iteration_folder(folder, number)]
    else:
        candidates = [folder / RELEASE, *reversed(numbered_folders(folder, _ITERATION_FOLDER).values())]
    for checkpoint in candidates:
        if has_weights(checkpoint):
            return checkpoint
    what = "no checkpoint that is whole" if step is None else f"no whole checkpoint of iteration {step}"
    raise MissingInputError(f"{folder} holds {what}", hint=f"ls {folder}, and name a checkpoint in it")


def write_tracker(folder: Path, iteration: int) -> None:
    replace_file(folder / TRACKER, str(iteration).encode())


def advance_tracker(folder: Path, iteration: int) -> None:
    """Have the tracker name an iteration that is about to be complete, unless a later one is."""
    if max(complete_iterations(folder), default=iteration) <= iteration:
        write_tracker(folder, iteration)


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


def _parts(checkpoint: Path) -> list[str]:
    """What can be read; all that there is of a checkpoint that Megatron wrote, nothing behind a broken record."""
    try:
        record = read_record(checkpoint)
    except DataError:
        return []
    if record is not None:
        return record.parts
    return [MODEL, OPTIMIZER] if (checkpoint / "metadata.json").is_file() else []

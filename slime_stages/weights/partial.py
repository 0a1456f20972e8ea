"""What a training that had to stop between two optimizer steps leaves for the next attempt. Needs no torch.

    RUN/iterations/000012/train/partial/
        iter_0000002/            the policy after two steps: a checkpoint from which training can resume
        critic/iter_0000002/     the critic, where there is one
        iter_0000002/steps.npz   what those steps have found out about the samples
        partial.json             names the one that counts, and what it was made from; written last

A step that is named there is never taken again. A kill at any moment leaves the old record or the new one.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from slime_stages.errors import DataError, MissingInputError, SlimeStagesError
from slime_stages.run.commit import replace_file
from slime_stages.run.digest import digest_bytes, sealed, unsealed
from slime_stages.run.rundir import RunDir
from slime_stages.weights.checkpoints import critic_checkpoints, iteration_folder
from slime_stages.weights.folders import numbered_folders, remove_folder

RECORD = "partial.json"
STEPS = "steps.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTraining:
    """The steps that are kept."""

    made_from: str
    """Digest of the training's inputs and of its config: they are steps of that training alone."""

    step_count: int
    """Optimizer steps taken, the critic's among them."""

    total_count: int
    """Optimizer steps of the whole iteration."""

    content: str
    """Digest of the parameters after them."""

    steps_digest: str
    """xxh3-128 of `steps.npz`, in hex."""

    critic_content: str = ""
    """Digest of the critic's parameters; empty without one."""


def partial_folder(run: RunDir, iteration: int) -> Path:
    return run.stage_path("train", iteration) / "partial"


def write_partial(folder: Path, partial: PartialTraining, steps: bytes) -> None:
    """Make the checkpoints of `folder`, written before, and `steps` the ones that count; earlier ones go."""
    replace_file(iteration_folder(folder, partial.step_count) / STEPS, steps)
    replace_file(folder / RECORD, orjson.dumps(sealed(asdict(partial)), option=orjson.OPT_INDENT_2))
    for place in (folder, critic_checkpoints(folder)):
        for number, path in numbered_folders(place, r"iter_(\d{7,})").items():
            if number != partial.step_count:
                remove_folder(path)


def read_partial(folder: Path) -> PartialTraining | None:
    """The record; None if there is none. DataError if it is not whole."""
    try:
        return PartialTraining(**unsealed(orjson.loads((folder / RECORD).read_bytes()), folder / RECORD))
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{folder / RECORD} is not whole: {error}") from error


def read_steps(folder: Path, partial: PartialTraining) -> bytes:
    """What the steps have found out, as it was written. MissingInputError or DataError if it is not."""
    path = iteration_folder(folder, partial.step_count) / STEPS
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingInputError(f"{path} is missing") from error
    if digest_bytes(content) != partial.steps_digest:
        raise DataError(f"{path} was altered since it was written")
    return content


def discard_partial(folder: Path) -> None:
    """Delete the steps: the training is committed, or they are another's. The record goes first."""
    (folder / RECORD).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def saved_steps(run: RunDir, iteration: int) -> int:
    """Optimizer steps that an attempt has left for the next one: whether it got further than the one before."""
    try:
        partial = read_partial(partial_folder(run, iteration))
    except SlimeStagesError:
        return 0
    return partial.step_count if partial else 0

"""Stop between two optimizer steps, and go on with the next one in another process: no step is ever taken twice."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch.distributed as distributed
from numpy.typing import NDArray

from slime_stages import __version__
from slime_stages.drain import Drained, count_progress, drain_reason
from slime_stages.errors import MissingInputError, SlimeStagesError
from slime_stages.run.digest import digest_bytes, digest_json
from slime_stages.stage import Stage, say
from slime_stages.weights.checkpoints import check_content, critic_checkpoints, iteration_folder, read_record
from slime_stages.weights.partial import (
    PartialTraining,
    discard_partial,
    partial_folder,
    read_partial,
    read_steps,
    write_partial,
)
from stages.train.collectives import merged_over_ranks
from stages.train.megatron import checkpoint
from stages.train.megatron.step import StepResult, Trainer
from stages.train.micro_batch import TokenColumns
from stages.train.objective import SampleStatistics
from stages.train.policy import parameter_digest
from stages.train.steps import Steps, StepsTaken

RESULTS = ("results", "critic_results")
"""Of `StepsTaken` and `Steps`."""


def load_partial(stage: Stage, trainer: Trainer, critic: Trainer | None) -> StepsTaken | None:
    """Load what a drained attempt at the same training has left into trainer and critic; None if it has left nothing.

    All ranks call it. What is another training's, or not whole, is deleted.
    """
    folder = partial_folder(stage.run, stage.plan.iteration)
    found: list[Any] = [None]
    if distributed.get_rank() == 0:
        found = [_usable(stage, folder)]
    distributed.broadcast_object_list(found, src=0)
    if found[0] is None:
        return None
    partial, steps = found[0]
    try:
        kept = _models(folder, trainer, critic)
        for (place, _), content in zip(kept, (partial.content, partial.critic_content), strict=False):
            _check_record(iteration_folder(place, partial.step_count), content)
        for place, _ in kept[1:]:
            checkpoint.verify(iteration_folder(place, partial.step_count))
        for place, model in kept:
            checkpoint.load(model, place, partial.step_count)
    except SlimeStagesError as error:  # on every rank: nothing is loaded before all of it is verified
        distributed.barrier()
        if distributed.get_rank() == 0:
            _discard(stage, folder, error.message)
        return None
    if distributed.get_rank() == 0:
        say(f"{stage.call.title}: goes on after step {partial.step_count} of {partial.total_count}")
    return _unpacked(steps, is_first=trainer.data_parallel_rank == 0)


def save_partial(stage: Stage, trainer: Trainer, critic: Trainer | None, steps: Steps) -> NoReturn:
    """Keep the steps taken for the next attempt, and end this one. All ranks call it."""
    count, total = steps.count, steps.total_count
    folder = partial_folder(stage.run, stage.plan.iteration)
    if steps.is_further:
        contents = [_save(model, place, count) for place, model in _models(folder, trainer, critic)]
        columns = {name: merged_over_ranks(rows) for name, rows in sorted(steps.columns.items())}
        if distributed.get_rank() == 0:
            packed = _packed(steps, columns)
            record = PartialTraining(
                made_from=_made_from(stage),
                step_count=count,
                total_count=total,
                content=contents[0],
                critic_content="".join(contents[1:]),
                steps_digest=digest_bytes(packed),
            )
            write_partial(folder, record, packed)
        distributed.barrier()
        count_progress(count)
    raise Drained(
        drain_reason() or "",
        f"{stage.call.title} stopped after step {count} of {total} ({drain_reason()}): "
        "these steps are kept, the same command takes the others",
    )


def _usable(stage: Stage, folder: Path) -> tuple[PartialTraining, bytes] | None:
    try:
        partial = read_partial(folder)
        if partial is None:
            discard_partial(folder)
            return None
        if partial.made_from != _made_from(stage):
            _discard(stage, folder, "they were taken on other inputs")
            return None
        return partial, read_steps(folder, partial)
    except SlimeStagesError as error:
        _discard(stage, folder, error.message)
        return None


def _models(folder: Path, trainer: Trainer, critic: Trainer | None) -> list[tuple[Path, Trainer]]:
    """What is kept of the steps, each with the folder of its checkpoints."""
    return [(folder, trainer)] + ([] if critic is None else [(critic_checkpoints(folder), critic)])


def _save(model: Trainer, folder: Path, count: int) -> str:
    """Returns the digest of the parameters."""
    content = parameter_digest(model)
    pending = checkpoint.save(model, folder, count, background=False)
    pending.wait_for_weights(content)
    pending.wait()
    return content


def _check_record(folder: Path, content: str) -> None:
    """Without its record nothing says whether the checkpoint is as it was written."""
    if read_record(folder) is None:
        raise MissingInputError(f"{folder} has lost its record")
    check_content(folder, content)


def _discard(stage: Stage, folder: Path, reason: str) -> None:
    say(f"{stage.call.title}: begins again with step 1: the steps of an earlier attempt cannot be used: {reason}")
    discard_partial(folder)


def _made_from(stage: Stage) -> str:
    return digest_json({"inputs": stage.inputs, "config": stage.config_digest, "version": __version__})


def _packed(steps: Steps, columns: TokenColumns) -> bytes:
    arrays: dict[str, Any] = {f"sum_{name}": values for name, values in steps.statistics.sums.items()}
    for name, rows in columns.items():
        positions = sorted(rows)
        arrays[f"positions_{name}"] = np.array(positions, np.int64)
        arrays[f"lengths_{name}"] = np.array([len(rows[position]) for position in positions], np.int64)
        arrays[f"values_{name}"] = np.concatenate([np.zeros(0, np.float32), *(rows[p] for p in positions)])
    file = io.BytesIO()
    for name in RESULTS:
        told = json.dumps([asdict(result) for result in getattr(steps, name)]).encode()
        arrays[name] = np.frombuffer(told, np.uint8)
    np.savez(file, **arrays)
    return file.getvalue()


def _unpacked(content: bytes, *, is_first: bool) -> StepsTaken:
    """The sums are those of all ranks together, and are added up at the end: the first one takes them."""
    with np.load(io.BytesIO(content)) as arrays:
        sums = {name.removeprefix("sum_"): arrays[name] for name in arrays.files if name.startswith("sum_")}
        names = [name.removeprefix("values_") for name in arrays.files if name.startswith("values_")]
        return StepsTaken(
            **{name: [StepResult(**told) for told in json.loads(arrays[name].tobytes())] for name in RESULTS},
            statistics=SampleStatistics({k: v if is_first else np.zeros_like(v) for k, v in sums.items()}),
            columns={name: _rows(arrays, name) for name in names},
        )


def _rows(arrays: Any, name: str) -> dict[int, NDArray[np.float32]]:
    positions = arrays[f"positions_{name}"].tolist()
    if not positions:
        return {}
    rows = np.split(arrays[f"values_{name}"], np.cumsum(arrays[f"lengths_{name}"])[:-1])
    return dict(zip(positions, rows, strict=True))

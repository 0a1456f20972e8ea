"""Save and load Megatron torch_dist checkpoints: weights, optimiser, schedule, random generators, iteration.

A save is in steps, each by rename, so that a kill at any moment leaves nothing half written under a real name:

1. all ranks write the model's weights into a temporary folder: a whole torch_dist checkpoint of the model, from which
   other stages may go on;
2. the optimiser's files join it and its metadata is replaced: an ordinary Megatron checkpoint; `checkpoint.json` says
   that it is complete;
3. the folder becomes `iter_0000013`, by the commit of the attempt, before or after step 2, and the tracker names it.

Of attempts that race, one has its folder there: the others delete theirs. Step 2 goes by the folder's descriptor, so
it reaches that very folder wherever it lies, never another attempt's. A folder that stopped before step 2 is not
resumed from, and the next save of that iteration replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch.distributed
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.weights.checkpoints import MODEL, OPTIMIZER, iteration_folder, read_record, verify_checkpoint
from slime_stages.weights.folders import new_temporary_folder, remove_dead_folders
from slime_stages.weights.torch_dist import TorchDistReader
from stages.train.megatron.async_writer import PARTS, Plan, PlanningStrategy, split_buckets
from stages.train.megatron.optimizer_state import load_optimizer_state, sharded_optimizer_state
from stages.train.megatron.pending_save import PendingSave, parallel_layout
from stages.train.megatron.rng_state import KEY as RNG
from stages.train.megatron.rng_state import restore_rng_state, sharded_rng_state

SCHEDULE = "opt_param_scheduler"
"""Megatron's own key."""


class Trainable(Protocol):
    """What is saved: a `Trainer`."""

    model: Any
    """Megatron's DistributedDataParallel around the model, or a list of them, one a virtual pipeline stage."""

    optimizer: Any

    scheduler: Any


def save(trainer: Trainable, folder: Path, iteration: int, *, background: bool) -> PendingSave:
    """Start to save; all ranks must call it, then `prepare` or `wait`. In the background a forked process of each rank
    writes the state as it is now, while the caller may go on training."""
    target = iteration_folder(folder, iteration)
    folders = _temporary_folders(target)
    strategy = PlanningStrategy()
    request = dist_checkpointing.save(
        _state(trainer, iteration), str(folders[MODEL]), sharded_strategy=_parallel(strategy), async_sharded_save=True
    )
    plan = Plan(buckets=split_buckets(request), folders=folders, transforms=strategy.writer.transforms)
    return PendingSave(target, iteration, strategy, plan, background=background)


def save_weights(module: Any, target: Path) -> None:
    """Make the folder `target` a checkpoint of a model's weights alone; all ranks must call it."""
    folders = _temporary_folders(target)
    strategy = PlanningStrategy()
    state = {"model": module.sharded_state_dict(), "iteration": 0, "checkpoint_version": 3.0}
    request = dist_checkpointing.save(
        state, str(folders[MODEL]), sharded_strategy=_parallel(strategy), async_sharded_save=True
    )
    plan = Plan(buckets=split_buckets(request), folders=folders, transforms=strategy.writer.transforms)
    pending = PendingSave(target, 0, strategy, plan, background=False)
    pending.wait_for_weights()
    pending.abandon()  # the folder of the optimizer's files, of which there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a checkpoint said beside the tensors."""

    iteration: int

    with_rng: bool
    """False for a checkpoint that Megatron itself wrote; the generators then keep their state."""


def load(trainer: Trainable, folder: Path, iteration: int, *, with_optimizer: bool = True) -> Restored:
    """Load a checkpoint in place, also one that another parallel layout wrote; all ranks must call it."""
    return load_folder(trainer, iteration_folder(folder, iteration), with_optimizer=with_optimizer)


def load_folder(trainer: Trainable, checkpoint: Path, *, with_optimizer: bool) -> Restored:
    """The same for a checkpoint's own folder."""
    verify(checkpoint, part=OPTIMIZER if with_optimizer else MODEL)
    _check_prediction_layers(trainer, checkpoint, is_continued=with_optimizer)
    record = read_record(checkpoint)
    models = _model_state(trainer)
    wanted = dict(models)
    if with_optimizer:
        wanted[OPTIMIZER] = sharded_optimizer_state(trainer.optimizer, _only_or_all(models), is_loading=True)
    loaded = dist_checkpointing.load(wanted, str(checkpoint))
    for name, chunk in _chunks(trainer).items():
        chunk.load_state_dict(loaded[name])
    if with_optimizer:
        load_optimizer_state(trainer.optimizer, loaded[OPTIMIZER])
        _load_schedule(trainer.scheduler, loaded[SCHEDULE])
    else:
        trainer.optimizer.reload_model_params()
    if with_optimizer and record is not None:
        _load_generators(checkpoint, record.layout)
    return Restored(iteration=loaded["iteration"], with_rng=with_optimizer and record is not None)


def verify(checkpoint: Path, *, part: str = OPTIMIZER) -> None:
    """Refuse a checkpoint that is not as it was written; all ranks must call it, each reads a share of the files."""
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    problem: SlimeStagesError | None = None
    try:
        verify_checkpoint(checkpoint, part=part, share=(rank, count))
    except SlimeStagesError as error:
        problem = error
    gathered: list[SlimeStagesError | None] = [None] * count
    torch.distributed.all_gather_object(gathered, problem)
    if found := next((each for each in gathered if each is not None), None):
        raise found


def _check_prediction_layers(trainer: Trainable, checkpoint: Path, *, is_continued: bool) -> None:
    """A policy that goes on has as many as it was saved with: others would be lost. Copies of it may have fewer."""
    wanted = next(iter(_chunks(trainer).values())).config.mtp_num_layers or 0
    with TorchDistReader(checkpoint) as reader:
        found = len({name.split(".")[2] for name in reader.names() if name.startswith("mtp.layers.")})
    if wanted > found or (is_continued and wanted != found):
        raise DataError(
            f"{checkpoint} holds {found} layers for multi-token prediction, and mtp_num_layers asks for {wanted}",
            hint=f"mtp_num_layers = {found}" if found else "leave mtp_num_layers out",
        )


def _load_generators(checkpoint: Path, layout: dict[str, int]) -> None:
    """By themselves, and unchecked: ranks of another layout ask for some of them twice, or not at all."""
    wanted = {RNG: sharded_rng_state(layout)}
    restore_rng_state(dist_checkpointing.load(wanted, str(checkpoint), validate_access_integrity=False)[RNG])


def _load_schedule(scheduler: Any, state: dict[str, Any]) -> None:
    """Go on counting where the checkpoint stopped, by the learning rate and weight decay of the config in force."""
    scheduler.override_opt_param_scheduler = True
    scheduler.use_checkpoint_opt_param_scheduler = False
    scheduler.num_steps = 0
    scheduler.load_state_dict(state)


def _state(trainer: Trainable, iteration: int) -> dict[str, Any]:
    models = _model_state(trainer)
    return {
        **models,
        OPTIMIZER: sharded_optimizer_state(trainer.optimizer, _only_or_all(models), is_loading=False),
        SCHEDULE: trainer.scheduler.state_dict(),
        RNG: sharded_rng_state(parallel_layout()),
        "iteration": iteration,
        "checkpoint_version": 3.0,
    }


def _model_state(trainer: Trainable) -> dict[str, Any]:
    return {name: chunk.sharded_state_dict() for name, chunk in _chunks(trainer).items()}


def _chunks(trainer: Trainable) -> dict[str, Any]:
    """The models without their data parallel wrapper, under Megatron's keys."""
    if not isinstance(trainer.model, list):
        return {"model": trainer.model.module}
    if len(trainer.model) == 1:
        return {"model": trainer.model[0].module}
    return {f"model{index}": wrapped.module for index, wrapped in enumerate(trainer.model)}


def _only_or_all(models: dict[str, Any]) -> Any:
    """The optimiser takes the one model's state, or that of all virtual stages by name."""
    return models.get("model", models)


def _temporary_folders(target: Path) -> dict[str, Path]:
    """One for each part, of the same names on all ranks; leftovers of dead attempts are removed."""
    names: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        remove_dead_folders(target.parent)
        names = [{part: new_temporary_folder(target.with_name(f"{target.name}.{part}")) for part in PARTS}]
    torch.distributed.broadcast_object_list(names, src=0)
    folders: dict[str, Path] = names[0]
    return folders


def _parallel(strategy: PlanningStrategy) -> Any:
    """Data parallel ranks hold the same weights: each writes a share of them."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    if group.size() == 1:
        return strategy
    return FullyParallelSaveStrategyWrapper(strategy, group)

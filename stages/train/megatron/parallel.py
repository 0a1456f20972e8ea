"""The process group and Megatron's parallel groups."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from slime_stages.errors import UsageError
from stages.train.megatron import cpu
from stages.train.megatron.settings import TrainerSettings

TIMEOUT = timedelta(minutes=30)
GROUPS = ("tensor_model_parallel_size", "context_parallel_size")
"""Groups that every pipeline stage is split into."""


def initialize(settings: TrainerSettings | None = None) -> None:
    """Join the job that RANK, WORLD_SIZE and MASTER_* describe, or be a job of one process that opens no port.

    May be called again with the same sizes.
    """
    settings = settings or TrainerSettings()
    cpu.install()
    from megatron.core import parallel_state, tensor_parallel

    if not distributed.is_initialized():
        _join_process_group()
    refuse_uneven_groups(settings, distributed.get_world_size())
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            settings.tensor_model_parallel_size,
            settings.pipeline_model_parallel_size,
            context_parallel_size=settings.context_parallel_size,
            expert_model_parallel_size=settings.expert_model_parallel_size,
            expert_tensor_parallel_size=settings.expert_tensor_parallel_size,
        )
    current = _sizes_of_groups()
    wanted = {name: getattr(settings, name) for name in current}
    assert current == wanted, (current, wanted)
    tensor_parallel.model_parallel_cuda_manual_seed(settings.seed, force_reset_rng=True)


def refuse_uneven_groups(settings: TrainerSettings, count: int) -> None:
    """UsageError if these processes cannot be split into such groups."""
    sizes = {name: getattr(settings, name) for name in (*GROUPS, "pipeline_model_parallel_size")}
    together = math.prod(sizes.values())
    if count % together:
        says = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        raise UsageError(
            f"{count} processes cannot be split into groups of {together} ({says})",
            hint="choose sizes whose product divides the number of processes",
        )
    expert_tensor = settings.expert_tensor_parallel_size or settings.tensor_model_parallel_size
    experts = expert_tensor * settings.expert_model_parallel_size
    stage = count // settings.pipeline_model_parallel_size
    if stage % experts:
        raise UsageError(
            f"the {stage} processes of a pipeline stage cannot be split into groups of {experts} for experts"
            f" (expert_model_parallel_size {settings.expert_model_parallel_size} x {expert_tensor})",
            hint="choose expert_model_parallel_size x expert_tensor_parallel_size to divide them",
        )


def _sizes_of_groups() -> dict[str, int]:
    from megatron.core import parallel_state

    return {
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "expert_model_parallel_size": parallel_state.get_expert_model_parallel_world_size(),
    }


def device() -> torch.device:
    """Where this process computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def from_last_stage(values: Any) -> Any:
    """A tensor as the last pipeline stage has it, which alone sees the loss; all of them call it, with one like it."""
    from megatron.core import parallel_state

    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() == 1:
        return values
    moved = values.to(device(), copy=True)
    distributed.broadcast(moved, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
    return moved.to(values.device)


def open_store(host: str, *, port: int | None = None) -> Any:
    """Where processes meet: on a port of this one that the system chooses, or on the given one of another.

    The port is taken as it is chosen, so that nobody else can have it between the choice and the use.
    """
    settings: dict[str, Any] = {"is_master": port is None, "wait_for_workers": False, "timeout": TIMEOUT}
    return distributed.TCPStore(host, port or 0, **settings)  # type: ignore[attr-defined]


def join(store: Any, *, rank: int, count: int, local_rank: int) -> None:
    """Join the `count` processes that meet at a store of torch's; all of them call it."""
    cpu.install()
    if torch.cuda.is_available():
        torch.cuda.set_device(device_index(local_rank, torch.cuda.device_count()))
    distributed.init_process_group(_backend(), timeout=TIMEOUT, store=store, rank=rank, world_size=count)


def _join_process_group() -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        distributed.init_process_group(_backend(), timeout=TIMEOUT)
    else:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(_backend(), timeout=TIMEOUT, store=store, rank=0, world_size=1)


def _backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"


def device_index(local_rank: int, device_count: int) -> int:
    """Which of the devices that this process sees is its own: the only one, or the one of its number on the node."""
    if device_count == 1:
        return 0
    if local_rank < device_count:
        return local_rank
    raise UsageError(
        f"process {local_rank} of its node sees {device_count} GPUs only",
        hint="ask for one GPU a process, such as --gpus-per-task=1 or --gpus-per-node as many as --ntasks-per-node",
    )

"""The process group and Megatron's parallel groups."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from slime_stages.errors import UsageError
from stages.train.megatron import cpu

TIMEOUT = timedelta(minutes=30)


def initialize(tensor_model_parallel_size: int = 1, *, seed: int = 1234) -> None:
    """Join the job that RANK, WORLD_SIZE and MASTER_* describe, or be a job of one process that opens no port.

    May be called again with the same size.
    """
    cpu.install()
    from megatron.core import parallel_state, tensor_parallel

    if not distributed.is_initialized():
        _join_process_group()
    world_size = distributed.get_world_size()
    if world_size % tensor_model_parallel_size:
        raise UsageError(
            f"{world_size} processes cannot be split into tensor-parallel groups of {tensor_model_parallel_size}",
            hint="set tensor_model_parallel_size to a divisor of the number of processes",
        )
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size)
    current = parallel_state.get_tensor_model_parallel_world_size()
    assert current == tensor_model_parallel_size, (current, tensor_model_parallel_size)
    tensor_parallel.model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def device() -> torch.device:
    """Where this process computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


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

"""The process group and Megatron's parallel groups."""

from __future__ import annotations

import os
from datetime import timedelta

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


def _join_process_group() -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        distributed.init_process_group(backend, timeout=TIMEOUT)
    else:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, timeout=TIMEOUT, store=store, rank=0, world_size=1)

"""Megatron's groups of processes, one set after the other in one process."""

from __future__ import annotations

import gc

import torch.distributed as distributed


def leave_groups() -> None:
    """The next trainer may have groups of other sizes, once the last one is gone.

    Megatron only forgets its groups: Gloo's threads would stay, 50 a set, each awake a hundred times a second.
    """
    from megatron.core import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return
    parallel_state.destroy_model_parallel()
    distributed.barrier()  # nobody works in one any more
    for group in set(distributed.distributed_c10d._world.pg_map) - {distributed.group.WORLD}:
        distributed.destroy_process_group(group)
    gc.collect()

"""All random number generators of a rank, so that a resumed run draws what the first one would have drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject

KEY = "rng_state"


def sharded_rng_state(layout: Mapping[str, int]) -> ShardedObject:
    """This rank's generators as one object of a grid over pipeline, tensor and data parallel ranks.

    `layout` is that of the grid. In another one than this job's, a rank has the place of the one that it goes on from,
    which several may share.
    """
    grid = (layout["pipeline"], layout["tensor"], layout["data"] * layout["context"])
    own = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )
    position = tuple(rank % size for rank, size in zip(own, grid, strict=True))
    return ShardedObject(KEY, _rng_state(), grid, position, replica_id=0)


def restore_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["device"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])


def _rng_state() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }

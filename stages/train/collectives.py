"""Sums over the data-parallel ranks, each of which has samples of its own."""

from __future__ import annotations

from typing import Any

import torch.distributed as distributed
from torch import Tensor

from stages.train.megatron import parallel


def data_parallel_group() -> Any:
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_group()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum over all data-parallel ranks, which all call it."""
    group = data_parallel_group()
    if group.size() == 1:
        return values
    moved = values.to(parallel.device())
    distributed.all_reduce(moved, group=group)
    return moved.to(values.device)


def merged_over_ranks(values: dict[Any, Any]) -> dict[Any, Any]:
    """One dict with the entries of all data-parallel ranks, which all call it."""
    group = data_parallel_group()
    if group.size() == 1:
        return values
    parts: list[dict[Any, Any]] = [{}] * group.size()
    distributed.all_gather_object(parts, values, group=group)
    return {key: value for part in parts for key, value in part.items()}

"""Which experts each token goes to: written down in one forward pass, and taken from there in another (spec §E.10).

A router asks for the experts of the rows that its layer computes. The rows travel through the layers with what is known
of them, also through recomputation, so that no pass is mistaken for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as distributed
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class RowRouting:
    """Of the T rows of this rank, where they enter routers. K experts a token."""

    given: Tensor | None
    """[T, layers, K] to be taken; None: to be written down."""

    written: dict[int, Tensor] = field(default_factory=dict)
    """[T, K] by layer, counted from 0 over all pipeline stages."""


class RowRouter:
    """Stands where a router of Megatron's looks for decisions to replay."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.routing: RowRouting | None = None
        """Of the rows that the layer computes now."""

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scores and numbers [T, K] of the chosen experts."""
        assert default_compute_topk is not None
        if self.routing is not None and self.routing.given is not None:
            chosen = self.routing.given[:, self.layer]
            return scores.gather(1, chosen), chosen
        best, chosen = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if self.routing is not None:
            self.routing.written[self.layer] = chosen.detach()
        return best, chosen


class RoutedLayer(TransformerLayer):  # type: ignore[misc]
    """Tells its router which rows come."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.row_router: RowRouter | None = None
        if (router := getattr(self.mlp, "router", None)) is not None:
            router.router_replay = self.row_router = RowRouter(self.layer_number - 1)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self.row_router is not None:
            self.row_router.routing = getattr(named.get("packed_seq_params"), "routing", None)
        return super().forward(*arguments, **named)


def rows_of_this_rank(rows: Tensor, *, is_split: bool) -> Tensor:
    """The part of [T, ...] that is between this rank's layers; `is_split`: over the tensor-parallel ranks."""
    if not is_split:
        return rows
    group = parallel_state.get_tensor_model_parallel_group()
    mine: Tensor = rows.chunk(group.size())[group.rank()]
    return mine


def gather_written(routing: RowRouting, *, row_count: int, layer_count: int, topk: int, is_split: bool) -> Tensor:
    """[T, layers, K] of the rows of this context-parallel rank, by all its tensor- and pipeline-parallel ranks; layers
    without experts have zeros. All of them call it."""
    group = parallel_state.get_tensor_model_parallel_group()
    whole = torch.zeros(row_count, layer_count, topk, dtype=torch.int32)
    mine = whole.chunk(group.size())[group.rank()] if is_split else whole
    for layer, chosen in routing.written.items():
        mine[:, layer] = chosen.int().cpu()
    if is_split:
        whole = sum_over(whole, group)
    return sum_over(whole, parallel_state.get_pipeline_model_parallel_group())


def sum_over(values: Tensor, group: Any) -> Tensor:
    if group.size() == 1:
        return values
    from stages.train.megatron import parallel

    moved = values.to(parallel.device())
    distributed.all_reduce(moved, group=group)
    return moved.to(values.device)

"""Join Hugging Face tensors into Megatron parameters, split them again, and cut or rejoin tensor-parallel shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slime_stages.weights.mapping.layout import WeightLayout
from slime_stages.weights.mapping.names import Kind, WeightRule

_SHARD_DIMENSION: dict[Kind, int] = {"row": 0, "column": 1, "qkv": 0, "gate_up": 0, "halves_row": 0}


def join_tensors(rule: WeightRule, tensors: Sequence[Tensor], layout: WeightLayout) -> Tensor:
    """The whole Megatron parameter from its Hugging Face tensors, given in the order of the rule."""
    if rule.kind == "qkv":
        groups = layout.num_query_groups
        return torch.cat([each.reshape(groups, -1, *each.shape[1:]) for each in tensors], dim=1).flatten(0, 1)
    if rule.kind == "halves_row":
        return _with_halves_exchanged(tensors[0])
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=0)


def split_tensor(rule: WeightRule, whole: Tensor, layout: WeightLayout) -> tuple[Tensor, ...]:
    """The Hugging Face tensors, in the order of the rule, from a whole Megatron parameter."""
    if rule.kind == "qkv":
        heads_per_group = layout.num_attention_heads // layout.num_query_groups
        by_group = whole.reshape(layout.num_query_groups, -1, *whole.shape[1:])
        sizes = [heads_per_group * layout.kv_channels, layout.kv_channels, layout.kv_channels]
        return tuple(each.flatten(0, 1).contiguous() for each in torch.split(by_group, sizes, dim=1))
    if rule.kind == "gate_up":
        return tuple(each.contiguous() for each in whole.chunk(2, dim=0))
    if rule.kind == "halves_row":
        return (_with_halves_exchanged(whole),)
    return (whole,)


def _with_halves_exchanged(matrix: Tensor) -> Tensor:
    left, right = matrix.chunk(2, dim=1)
    return torch.cat([right, left], dim=1)


def cut_shard(rule: WeightRule, whole: Tensor, *, rank: int, size: int) -> Tensor:
    """The part of a whole Megatron parameter that one tensor-parallel rank holds."""
    if rule.kind == "replicated" or size == 1:
        return whole
    if rule.kind == "gate_up":
        return torch.cat([each.chunk(size, dim=0)[rank] for each in whole.chunk(2, dim=0)], dim=0)
    return whole.chunk(size, dim=_SHARD_DIMENSION[rule.kind])[rank]


def join_shards(rule: WeightRule, shards: Sequence[Tensor]) -> Tensor:
    """The whole Megatron parameter from the shards of all tensor-parallel ranks, in rank order."""
    if rule.kind == "replicated" or len(shards) == 1:
        return shards[0]
    if rule.kind == "gate_up":
        halves = [shard.chunk(2, dim=0) for shard in shards]
        return torch.cat([half[part] for part in (0, 1) for half in halves], dim=0)
    return torch.cat(list(shards), dim=_SHARD_DIMENSION[rule.kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which part of a model a rank holds."""

    layer_offset: int = 0
    """Layers before its first."""

    expert_offset: int = 0
    """Experts before its first."""

    tensor_rank: int = 0

    tensor_size: int = 1

    expert_tensor_rank: int = 0

    expert_tensor_size: int = 1


def to_megatron(name: str, read: Callable[[str], Tensor], layout: WeightLayout, place: Place | None = None) -> Tensor:
    """One Megatron parameter (this rank's shard) from Hugging Face tensors that `read` yields by name."""
    place = place or Place()
    rule = layout.rule(name, layer_offset=place.layer_offset, expert_offset=place.expert_offset)
    whole = join_tensors(rule, [read(each) for each in rule.huggingface_names], layout)
    if rule.is_expert:
        return cut_shard(rule, whole, rank=place.expert_tensor_rank, size=place.expert_tensor_size)
    return cut_shard(rule, whole, rank=place.tensor_rank, size=place.tensor_size)


def to_huggingface(
    name: str, shards: Sequence[Tensor], layout: WeightLayout, *, layer_offset: int = 0, expert_offset: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """The named Hugging Face tensors of one Megatron parameter, from the shards of all tensor-parallel ranks."""
    rule = layout.rule(name, layer_offset=layer_offset, expert_offset=expert_offset)
    tensors = split_tensor(rule, join_shards(rule, shards), layout)
    yield from zip(rule.huggingface_names, tensors, strict=True)

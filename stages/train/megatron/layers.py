"""Megatron's layers for packed rows: by Transformer Engine where it is, otherwise by what runs anywhere."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor

from stages.train.megatron.attention import PackedAttention, PackedRow
from stages.train.megatron.mtp import PackedMtpLayer
from stages.train.megatron.routing import RoutedLayer


class RMSNorm(torch.nn.RMSNorm):
    """torch's, whose gradient Megatron adds up over the ranks that the tokens are cut over."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **unused: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def has_transformer_engine() -> bool:
    if not torch.cuda.is_available():
        return False
    from megatron.core.extensions.transformer_engine import HAVE_TE

    return bool(HAVE_TE)


def block_spec(config: Any, *, vp_stage: int | None) -> Any:
    """The layers of one pipeline stage, with the final norm."""
    is_fused = has_transformer_engine()
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=is_fused, normalization="RMSNorm", vp_stage=vp_stage
    )
    for layer in {id(each): each for each in block.layer_specs}.values():
        layer.module = RoutedLayer
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = fused_attention() if is_fused else PackedAttention
        if not is_fused:
            _use_plain_norms(layer.submodules, ("input_layernorm", "pre_mlp_layernorm"))
            _use_plain_norms(attention, ("q_layernorm", "k_layernorm"))
    if not is_fused:
        block.layer_norm = RMSNorm
    return block


def mtp_spec(config: Any, block: Any, *, vp_stage: int | None) -> Any | None:
    """The layers for multi-token prediction, each around one as the last of `block`; None where there are none."""
    if config.mtp_num_layers is None:
        return None
    is_fused = has_transformer_engine()
    spec = get_gpt_mtp_block_spec(config, block, use_transformer_engine=is_fused, vp_stage=vp_stage)
    for layer in {id(each): each for each in spec.layer_specs}.values() if spec is not None else ():
        layer.module = PackedMtpLayer
        if not is_fused:
            _use_plain_norms(layer.submodules, ("enorm", "hnorm", "layer_norm"))
    return spec


def _use_plain_norms(submodules: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if "Norm" in getattr(getattr(submodules, name), "__name__", ""):
            setattr(submodules, name, RMSNorm)


@cache
def fused_attention() -> type:
    """Transformer Engine's attention for rows that are whole sequences; it is imported where it is only."""
    from megatron.core.extensions.transformer_engine import TEDotProductAttention

    class FusedAttention(TEDotProductAttention):  # type: ignore[misc]
        """Of rows where prompts are shared, or that are cut over ranks, and in float32, for which no kernel is fused,
        `PackedAttention`."""

        def __init__(self, config: Any, *arguments: Any, softmax_scale: float | None = None, **named: Any) -> None:
            super().__init__(config, *arguments, softmax_scale=softmax_scale, **named)
            self.packed = PackedAttention(config, softmax_scale=softmax_scale)

        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, mask: None, *, packed_seq_params: PackedRow, **named: Any
        ) -> Tensor:
            sequences, is_cut = packed_seq_params.sequences, parallel_state.get_context_parallel_world_size() > 1
            if sequences is None or is_cut or query.dtype is torch.float32:
                return self.packed(query, key, value, mask, packed_seq_params=packed_seq_params)  # type: ignore[no-any-return]
            rows = (each.squeeze(1) for each in (query, key, value))
            output = super().forward(*rows, None, AttnMaskType.padding_causal, packed_seq_params=sequences)
            return output.reshape(len(query), 1, -1)  # type: ignore[no-any-return]

    return FusedAttention

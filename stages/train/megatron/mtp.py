"""Multi-token prediction (MTP): layers behind a model that predict tokens further ahead, and what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stages.train.megatron.attention import PackedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpInput:
    """An `MtpRow` of T rows on the device, padding included."""

    tokens: Tensor
    """[T]"""

    sources: Tensor
    """[T]"""

    positions: Tensor
    """[T]"""

    packed_row: PackedRow

    logit_rows: Tensor
    """[M]"""


class PackedMtpLayer(MultiTokenPredictionLayer):  # type: ignore[misc]
    """Megatron's, without its own idea of which token follows which: siblings may share the rows of the model."""

    def forward(self, hidden_states: Tensor, embeddings: Tensor, *, rotary_pos_emb: Tensor, row: PackedRow) -> Tensor:
        """Hidden states [T, 1, H] and embeddings [T, 1, H] to hidden states [T, 1, H]."""

        def layer(hidden_states: Tensor, embeddings: Tensor) -> Tensor:
            output = self._proj_and_transformer_layer(
                hidden_states, embeddings, rotary_pos_emb=rotary_pos_emb, packed_seq_params=row
            )
            return cast(Tensor, output)

        if self.config.recompute_granularity != "full" or self.config.fp8 or not torch.is_grad_enabled():
            return layer(hidden_states, embeddings)
        return cast(Tensor, checkpoint(layer, hidden_states, embeddings, use_reentrant=False, preserve_rng_state=False))

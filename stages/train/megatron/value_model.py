"""A critic: the policy's transformer with one number for each token in place of logits."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stages.train.megatron.model import PackedGPTModel, default_model

HEAD_SEED, HEAD_DEVIATION = 20, 0.02


class ValueHead(nn.Module):
    """[..., H] to [..., 1]; the same on all tensor-parallel ranks."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        start = torch.randn(1, width, generator=torch.Generator().manual_seed(HEAD_SEED)) * HEAD_DEVIATION
        self.weight = nn.Parameter(start.to(dtype))

    def forward(self, hidden_states: Tensor, weight: None = None) -> tuple[Tensor, None]:
        return nn.functional.linear(hidden_states, self.weight), None


class PackedValueModel(PackedGPTModel):
    """Its "logits" are [N, 1] values."""

    unread: ClassVar[frozenset[str]] = frozenset({"output_layer.weight"})

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{**named, "share_embeddings_and_output_weights": False})
        if self.post_process:
            self.output_layer = ValueHead(self.config.hidden_size, self.config.params_dtype)


def value_model(pre_process: bool, post_process: bool) -> PackedGPTModel:
    """A model provider; see `build_model`."""
    return default_model(pre_process, post_process, kind=PackedValueModel)

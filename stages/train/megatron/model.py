"""A Megatron-Core `GPTModel` over packed rows, with the weights of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from slime_stages.errors import UsageError
from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout
from slime_stages.weights.mapping.reader import HuggingFaceReader
from slime_stages.weights.mapping.tensors import to_megatron
from stages.train.megatron import parallel
from stages.train.megatron.attention import PackedAttention, PackedRow
from stages.train.megatron.config import rotary_frequencies, transformer_config
from stages.train.megatron.settings import TrainerSettings

_DEFAULT: ContextVar[tuple[Path, TrainerSettings]] = ContextVar("default_model")


class PackedGPTModel(GPTModel):  # type: ignore[misc]
    """Differs from `GPTModel` in two ways: positions are given, and logits are computed only where asked."""

    unread: ClassVar[frozenset[str]] = frozenset()
    """Parameters that no Hugging Face folder holds."""

    def __init__(self, config: Any, frequencies: Tensor, **arguments: Any) -> None:
        super().__init__(config, position_embedding_type="none", **arguments)
        # Neither parameter nor buffer: stays float32 in a bfloat16 model and out of checkpoints.
        self.frequencies = frequencies

    def forward(self, tokens: Tensor, positions: Tensor, packed_row: PackedRow, logit_rows: Tensor) -> Tensor:
        """Tokens [T] and positions [T] to logits [N, V / tp] at `logit_rows` [N]."""
        hidden_states = self.embedding(tokens.unsqueeze(0), positions.unsqueeze(0)) if self.pre_process else None
        hidden_states = self.decoder(
            hidden_states=hidden_states,
            attention_mask=None,
            rotary_pos_emb=self._rotary_angles(positions),
            packed_seq_params=packed_row,
        )
        if not self.post_process:
            return cast(Tensor, hidden_states)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(hidden_states.index_select(0, logit_rows), weight=weight)
        return cast(Tensor, logits.squeeze(1))

    def _rotary_angles(self, positions: Tensor) -> Tensor:
        """[T, 1, 1, head width]"""
        angles = positions.unsqueeze(-1).float() * self.frequencies
        return torch.cat([angles, angles], dim=-1)[:, None, None, :]


def build_model(
    folder: Path,
    settings: TrainerSettings,
    device: torch.device,
    *,
    load_weights: bool = True,
    provider: Callable[..., Any] | None = None,
) -> Any:
    """The model on this rank with its weights, unless a checkpoint follows; a `Float16Module` around it for bfloat16.

    Without `load_weights` the parameters hold whatever memory held. A `provider` makes the model; it may take
    `default_model` and change it.
    """
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    token = _DEFAULT.set((folder, settings))
    try:
        model = default_model(first, last) if provider is None else provider(first, last)
    finally:
        _DEFAULT.reset(token)
    if not isinstance(model, PackedGPTModel):
        raise UsageError(
            f"the model provider made a {type(model).__name__}, not a PackedGPTModel",
            hint="begin with stages.train.megatron.model.default_model(pre_process, post_process)",
        )
    model = model.to(device)
    if load_weights:
        load_huggingface_weights(model, folder)
    return Float16Module(model.config, model) if model.config.bf16 else model


def default_model(pre_process: bool, post_process: bool, *, kind: type[PackedGPTModel] | None = None) -> PackedGPTModel:
    """What a run without a model provider trains; for providers, while they are called."""
    folder, settings = _DEFAULT.get()
    huggingface = read_huggingface_config(folder)
    config = transformer_config(huggingface, settings)
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return (kind or PackedGPTModel)(
        config,
        rotary_frequencies(huggingface).to(parallel.device()),
        transformer_layer_spec=spec,
        vocab_size=huggingface["vocab_size"],
        max_sequence_length=huggingface["max_position_embeddings"],
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=bool(huggingface.get("tie_word_embeddings", False)),
    )


def unwrapped(module: Any) -> PackedGPTModel:
    """The model within what Megatron wraps around it for bfloat16."""
    return cast(PackedGPTModel, getattr(module, "module", module))


@torch.no_grad()
def load_huggingface_weights(model: PackedGPTModel, folder: Path) -> None:
    """Fill every parameter on this rank but the model's `unread` ones, reading tensor by tensor."""
    layout = weight_layout(read_huggingface_config(folder))
    with HuggingFaceReader(folder) as reader:
        for name, parameter in model.named_parameters():
            if name in model.unread:
                continue
            tensor = to_megatron(
                name,
                reader.read,
                layout,
                layer_offset=model.decoder.layers[0].layer_number - 1,
                rank=parallel_state.get_tensor_model_parallel_rank(),
                size=parallel_state.get_tensor_model_parallel_world_size(),
            )
            assert tensor.shape == parameter.shape, (name, tensor.shape, parameter.shape)
            parameter.copy_(tensor)

"""A Megatron-Core `GPTModel` over packed rows, with the weights of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region, scatter_to_sequence_parallel_region
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from torch import Tensor

from slime_stages.errors import UsageError
from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout
from slime_stages.weights.mapping.reader import HuggingFaceReader
from slime_stages.weights.mapping.tensors import Place, to_megatron
from stages.train.megatron import parallel
from stages.train.megatron.attention import PackedRow
from stages.train.megatron.config import rotary_frequencies, transformer_config
from stages.train.megatron.layers import block_spec, mtp_spec
from stages.train.megatron.mtp import MtpInput
from stages.train.megatron.routing import rows_of_this_rank
from stages.train.megatron.settings import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """What `default_model` makes while a model is built."""

    folder: Path
    settings: TrainerSettings
    vp_stage: int | None


_DEFAULT: ContextVar[_Chunk] = ContextVar("default_model")


class PackedGPTModel(GPTModel):  # type: ignore[misc]
    """Differs from `GPTModel` in three ways: positions are given, logits are computed only where asked, and layers for
    multi-token prediction (MTP) are told of each row what they see."""

    unread: ClassVar[frozenset[str]] = frozenset()
    """Parameters that no Hugging Face folder holds."""

    def __init__(self, config: Any, frequencies: Tensor, **arguments: Any) -> None:
        super().__init__(config, position_embedding_type="none", **arguments)
        # Neither parameter nor buffer: stays float32 in a bfloat16 model and out of checkpoints.
        self.frequencies = frequencies
        self._defers_logits = False
        if self.post_process and config.sequence_parallel:
            # `forward` joins the tokens itself, before it chooses among them.
            self.output_layer.sequence_parallel, self.output_layer.allreduce_dgrad = False, True

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        packed_row: PackedRow,
        logit_rows: Tensor,
        mtp_inputs: Sequence[MtpInput] = (),
    ) -> Tensor | tuple[Tensor, ...]:
        """Tokens [T] and positions [T] to logits [N, V / tp] at `logit_rows` [N].

        With `mtp_inputs` also to those of each layer for multi-token prediction, [M, V / tp].
        """
        hidden_states = self.embedding(tokens.unsqueeze(0), positions.unsqueeze(0)) if self.pre_process else None
        hidden_states = self.decoder(
            hidden_states=hidden_states,
            attention_mask=None,
            rotary_pos_emb=self._rotary_angles(positions),
            packed_seq_params=packed_row,
        )
        if not self.post_process:
            return cast(Tensor, hidden_states)
        hidden_states = self._joined(hidden_states)
        chosen = hidden_states.index_select(0, logit_rows).squeeze(1)
        output = chosen if self._defers_logits else self.logits(chosen)
        return (output, *self._predictions(hidden_states, mtp_inputs)) if mtp_inputs else output

    def _predictions(self, hidden_states: Tensor, inputs: Sequence[MtpInput]) -> Iterator[Tensor]:
        """Nothing but the MTP layers themselves gets a gradient of them."""
        for layer, given in zip(self.mtp.layers, inputs, strict=True):
            seen = hidden_states.detach().index_select(0, given.sources)
            if self.config.sequence_parallel:
                seen = scatter_to_sequence_parallel_region(seen)
            angles = self._rotary_angles(given.positions)
            hidden_states = self._joined(
                layer(seen, self._seen_embeddings(given), rotary_pos_emb=angles, row=given.packed_row)
            )
            chosen = hidden_states.index_select(0, given.logit_rows).squeeze(1)
            yield chosen if self._defers_logits else self.mtp_logits(chosen)

    @torch.no_grad()
    def _seen_embeddings(self, given: MtpInput) -> Tensor:
        """Zeros at a sample's first token, as SGLang has it."""
        embeddings = self.embedding(given.tokens.unsqueeze(0), given.positions.unsqueeze(0))
        positions = rows_of_this_rank(given.positions, is_split=self.config.sequence_parallel)
        return cast(Tensor, embeddings.masked_fill(positions[:, None, None] == 0, 0.0))

    def _joined(self, hidden_states: Tensor) -> Tensor:
        """Of all tokens, where each tensor-parallel rank has a part of them."""
        if not self.config.sequence_parallel:
            return hidden_states
        return cast(Tensor, gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False))

    def defer_logits(self) -> Callable[[Tensor], Tensor]:
        """Have `forward` give hidden states [N, H] from now on; returns what makes logits of them."""
        self._defers_logits = True
        return self.logits

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[N, H] to [N, V / tp]."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        return self._logits(hidden_states, weight)

    def mtp_logits(self, hidden_states: Tensor) -> Tensor:
        """The same of an MTP layer's, without a gradient for the output layer."""
        is_shared = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if is_shared else self.output_layer.weight
        return self._logits(hidden_states, weight.detach())

    def _logits(self, hidden_states: Tensor, weight: Tensor | None) -> Tensor:
        logits, _ = self.output_layer(hidden_states.to(self.config.params_dtype).unsqueeze(1), weight=weight)
        return cast(Tensor, logits.squeeze(1))

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        """Megatron's forgets to make the metadata that it reads where the MTP layers have embeddings of their own."""
        return super().sharded_state_dict(prefix, sharded_offsets, ensure_metadata_has_dp_cp_group(metadata))

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
) -> list[Any]:
    """The model on this rank, one chunk a virtual pipeline stage, with its weights, unless a checkpoint follows; a
    `Float16Module` around each for bfloat16.

    Without `load_weights` the parameters hold whatever memory held. A `provider` makes a chunk; it may take
    `default_model` and change it.
    """
    config = transformer_config(read_huggingface_config(folder), settings)
    count = config.virtual_pipeline_model_parallel_size
    parallel_state.set_virtual_pipeline_model_parallel_world_size(count)
    chunks = []
    for vp_stage in (None,) if count is None else range(count):
        model = _build_chunk(_Chunk(folder=folder, settings=settings, vp_stage=vp_stage), provider).to(device)
        if load_weights:
            load_huggingface_weights(model, folder)
        chunks.append(Float16Module(model.config, model) if model.config.bf16 else model)
    return chunks


def _build_chunk(chunk: _Chunk, provider: Callable[..., Any] | None) -> PackedGPTModel:
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk.vp_stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk.vp_stage)
    token = _DEFAULT.set(chunk)
    try:
        model = default_model(first, last) if provider is None else provider(first, last)
    finally:
        _DEFAULT.reset(token)
    if not isinstance(model, PackedGPTModel):
        raise UsageError(
            f"the model provider made a {type(model).__name__}, not a PackedGPTModel",
            hint="begin with stages.train.megatron.model.default_model(pre_process, post_process)",
        )
    return model


def default_model(pre_process: bool, post_process: bool, *, kind: type[PackedGPTModel] | None = None) -> PackedGPTModel:
    """What a run without a model provider trains; for providers, while they are called."""
    chunk = _DEFAULT.get()
    huggingface = read_huggingface_config(chunk.folder)
    config = transformer_config(huggingface, chunk.settings)
    block = block_spec(config, vp_stage=chunk.vp_stage)
    return (kind or PackedGPTModel)(
        config,
        rotary_frequencies(huggingface).to(parallel.device()),
        transformer_layer_spec=block,
        mtp_block_spec=mtp_spec(config, block, vp_stage=chunk.vp_stage),
        vocab_size=huggingface["vocab_size"],
        max_sequence_length=huggingface["max_position_embeddings"],
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=bool(huggingface.get("tie_word_embeddings", False)),
        vp_stage=chunk.vp_stage,
    )


def unwrapped(module: Any) -> PackedGPTModel:
    """The model within what Megatron wraps around it for bfloat16."""
    return cast(PackedGPTModel, getattr(module, "module", module))


@torch.no_grad()
def load_huggingface_weights(model: PackedGPTModel, folder: Path) -> None:
    """Fill every parameter on this rank but the model's `unread` ones, reading tensor by tensor."""
    layout, place = weight_layout(read_huggingface_config(folder)), place_of(model)
    with HuggingFaceReader(folder) as reader:
        for name, parameter in model.named_parameters():
            if name in model.unread:
                continue
            tensor = to_megatron(name, reader.read, layout, place)
            assert tensor.shape == parameter.shape, (name, tensor.shape, parameter.shape)
            parameter.copy_(tensor)


def place_of(model: PackedGPTModel) -> Place:
    """Which part of the whole model this one is."""
    experts = model.config.num_moe_experts or 0
    here = experts // parallel_state.get_expert_model_parallel_world_size()
    return Place(
        layer_offset=model.decoder.layers[0].layer_number - 1 if len(model.decoder.layers) else 0,
        expert_offset=here * parallel_state.get_expert_model_parallel_rank(),
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        tensor_size=parallel_state.get_tensor_model_parallel_world_size(),
        expert_tensor_rank=parallel_state.get_expert_tensor_parallel_rank(),
        expert_tensor_size=parallel_state.get_expert_tensor_parallel_world_size(),
    )

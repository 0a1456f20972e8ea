"""What layers for multi-token prediction compute, written again as SGLang's MiMo does it: one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from stages.train.megatron.packing import PackedSample
from tests.stages.train.megatron.tiny_models import load_transformers_model

PREFIX = "model.mtp_layers"


class Reference:
    """A tiny MiMo."""

    def __init__(self, folder: Path) -> None:
        from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

        self.model = load_transformers_model(folder)
        tensors = load_file(folder / "model.safetensors")
        self.parameters = {name: tensor.requires_grad_() for name, tensor in tensors.items() if PREFIX in name}
        make: Any = Qwen2DecoderLayer
        self.block = make(self.model.config, 0)

    def logits(self, tokens: Tensor, layers: int) -> list[Tensor]:
        """Of each layer k: [T - k, V], at token i of what token i + k + 1 may be."""
        model, found = self.model.model, []
        with torch.no_grad():
            hidden = model(input_ids=tokens[None]).last_hidden_state[0]
        for layer in range(layers):
            own = {name: each for name, each in self.parameters.items() if name.startswith(f"{PREFIX}.{layer}.")}
            own = {name.split(".", 3)[3]: each for name, each in own.items()}
            embeddings = model.embed_tokens(tokens[layer + 1 :]).detach().clone()
            embeddings[0] = 0
            seen = [
                self.norm(hidden[: len(embeddings)], own["hidden_layernorm.weight"]),
                self.norm(embeddings, own["token_layernorm.weight"]),
            ]
            joined = torch.cat(seen, dim=-1) @ own["input_proj.weight"].T
            output = self.run_block(joined, {name: each for name, each in own.items() if name.startswith(BLOCK)})
            hidden = self.norm(output, own["final_layernorm.weight"])
            found.append(hidden @ self.model.lm_head.weight.detach().T)
            hidden = hidden.detach()
        return found

    def losses(self, samples: Sequence[PackedSample], layers: int) -> list[Tensor]:
        """Of each layer: weight times cross entropy, summed over the response tokens."""
        totals = [torch.zeros(()) for _ in range(layers)]
        for sample in samples:
            tokens = torch.from_numpy(sample.tokens)
            for layer, logits in enumerate(self.logits(tokens, layers)):
                log_probabilities = logits.log_softmax(-1)
                for place, weight in enumerate(sample.columns["weight"].tolist()):
                    target = sample.prompt_length + place
                    if target >= layer + 2:
                        entropy = -log_probabilities[target - layer - 2, tokens[target]]
                        totals[layer] = totals[layer] + weight * entropy
        return totals

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return hidden * torch.rsqrt(variance + self.model.config.rms_norm_eps) * weight

    def run_block(self, hidden: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        count = len(hidden)
        angles = self.model.model.rotary_emb(hidden[None], torch.arange(count)[None])
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        arguments = {"attention_mask": mask, "position_embeddings": angles}
        output = torch.func.functional_call(self.block, parameters, (hidden[None],), arguments)
        return (output if isinstance(output, Tensor) else output[0])[0]


BLOCK = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")

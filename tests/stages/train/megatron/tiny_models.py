"""Tiny Hugging Face models with non-trivial weights, samples for them, and what transformers and torch make of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slime_stages.weights.mapping.families import families
from slime_stages.weights.mapping.layout import read_huggingface_config
from slime_stages.weights.verify import read_as
from stages.train.megatron.packing import Nuclei, PackedMicroBatch, PackedSample
from stages.train.megatron.settings import TrainerSettings

TEMPERATURE = 0.8
SETTINGS = TrainerSettings(
    lr=1e-2,
    min_lr=1e-3,
    lr_decay_style="cosine",
    lr_decay_steps=6,
    weight_decay=0.1,
    adam_beta2=0.95,
    adam_eps=1e-6,
    clip_grad=0.5,
    rollout_temperature=TEMPERATURE,
)
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA_ROPE, "tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 16},
    "mimo": {"tie_word_embeddings": False},
    "mistral": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    "qwen2_moe": {
        **EXPERTS,
        "tie_word_embeddings": False,
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {**EXPERTS, "tie_word_embeddings": True, "norm_topk_prob": True, "head_dim": 16},
}
"""Tied embeddings and own ones, Llama 3's and linear rotary scaling, biases, query/key norms; experts whose weights
sum to 1 or do not, in all layers or beside dense ones and with an expert that all tokens go to."""

PREDICTION_LAYERS = 2
"""Of a tiny MiMo."""

MODELS = tuple(DIFFERENCES)
MIXTURES = tuple(kind for kind in MODELS if kind.endswith("_moe"))
DENSE = tuple(kind for kind in MODELS if kind not in MIXTURES)


def save_tiny_model(kind: str, folder: Path, *, layers: int = 2) -> Path:
    import transformers

    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
        "rope_parameters": ROPE,
    }
    known = families()[kind].read_as or kind
    config = transformers.AutoConfig.for_model(known, **shape | DIFFERENCES[kind])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    if kind == "mimo":
        add_prediction_layers(folder, PREDICTION_LAYERS)
    return folder


def add_prediction_layers(folder: Path, count: int) -> None:
    """Make a Qwen 2 a MiMo: with layers like its others, and around each what the layers for prediction have."""
    tensors = load_file(folder / "model.safetensors")
    width = tensors["model.norm.weight"].shape[0]
    for layer in range(count):
        added = {
            name.removeprefix("model.layers.0."): tensor for name, tensor in tensors.items() if ".layers.0." in name
        }
        added |= {f"{name}_layernorm.weight": torch.ones(width) for name in ("token", "hidden", "final")}
        added |= {"input_proj.weight": 0.2 * torch.randn(width, 2 * width)}
        for name, tensor in added.items():
            tensors[f"model.mtp_layers.{layer}.{name}"] = tensor + 0.1 * torch.randn_like(tensor)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": count}
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}, "attention_bias": True}
    (folder / "config.json").write_text(json.dumps(config))


def load_transformers_model(folder: Path) -> Any:
    """Without layers for multi-token prediction, which transformers does not know."""
    import transformers

    how = {"attn_implementation": "eager", "dtype": torch.float32, **read_as(read_huggingface_config(folder))}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **how)


def one_by_one(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the names that a folder has: transformers holds the experts of a layer as one tensor."""
    found = {}
    for name, tensor in tensors.items():
        layer, _, fused = name.partition(".mlp.experts.")
        for expert in range(len(tensor) if fused else 0):
            parts = tensor[expert].chunk(2) if fused == "gate_up_proj" else (tensor[expert],)
            for part, kind in zip(parts, ("gate_proj", "up_proj") if len(parts) == 2 else ("down_proj",), strict=True):
                found[f"{layer}.mlp.experts.{expert}.{kind}.weight"] = part
        if not fused:
            found[name] = tensor
    return found


def make_samples(seed: int, *, shared: bool) -> list[PackedSample]:
    """Three groups of three samples, of uneven lengths; each response token has a weight in the loss."""
    random = np.random.default_rng(seed)
    samples = []
    for group in range(3):
        prompt = random.integers(0, 96, 3 + 4 * group)
        for _ in range(3):
            response = random.integers(0, 96, random.integers(1, 9))
            samples.append(
                PackedSample(
                    tokens=np.concatenate([prompt, response]),
                    response_length=len(response),
                    share_key=group if shared else None,
                    columns={"weight": random.standard_normal(len(response)).astype(np.float32) / 9},
                )
            )
    return samples


def with_nuclei(samples: Sequence[PackedSample]) -> list[PackedSample]:
    """As if every other response token had been drawn from 11 tokens and the rest from all."""
    random, found = np.random.default_rng(5), []
    for sample in samples:
        counts = np.where(np.arange(sample.response_length) % 2, 0, 11)
        ids = [random.choice(96, count, replace=False) for count in counts]
        nuclei = Nuclei(ids=np.concatenate(ids).astype(np.int64), offsets=np.append(0, np.cumsum(counts)))
        found.append(replace(sample, nuclei=nuclei))
    return found


def weighted_loss(
    micro_batch: PackedMicroBatch, log_probs: Tensor, entropies: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Linear in the log-probs, and in the entropies if there are any."""
    weights = torch.from_numpy(micro_batch.columns["weight"])
    values = log_probs if entropies is None else log_probs + 0.5 * entropies
    return (values * weights).sum(), {"tokens": torch.tensor(float(len(weights)))}


def transformers_scores(model: Any, sample: PackedSample) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [R] from one unpadded forward pass."""
    tokens = torch.from_numpy(sample.tokens)
    logits = model(input_ids=tokens[None]).logits[0, sample.prompt_length - 1 : -1] / TEMPERATURE
    log_probabilities = logits.log_softmax(-1)
    targets = tokens[sample.prompt_length :]
    entropies = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return log_probabilities.gather(-1, targets[:, None])[:, 0], entropies


def transformers_loss(model: Any, samples: Sequence[PackedSample], *, with_entropy: bool = False) -> Tensor:
    total = torch.zeros(())
    for sample in samples:
        log_probs, entropies = transformers_scores(model, sample)
        values = log_probs + 0.5 * entropies if with_entropy else log_probs
        total = total + (values * torch.from_numpy(sample.columns["weight"])).sum()
    return total


def train_with_torch(folder: Path, steps: int) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Loss, gradient norm and learning rate of each step, and the weights after the last."""
    model = load_transformers_model(folder)
    decayed = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim == 1]
    groups = [{"params": decayed, "weight_decay": SETTINGS.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (SETTINGS.adam_beta1, SETTINGS.adam_beta2)
    optimizer = torch.optim.AdamW(groups, lr=SETTINGS.lr, betas=betas, eps=SETTINGS.adam_eps)
    history = []
    for step in range(steps):
        cosine = 0.5 * (np.cos(np.pi * step / SETTINGS.lr_decay_steps) + 1)
        lr = SETTINGS.min_lr + cosine * (SETTINGS.lr - SETTINGS.min_lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = transformers_loss(model, make_samples(step, shared=False))
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip_grad)
        optimizer.step()
        history.append({"loss": float(loss), "grad_norm": float(grad_norm), "lr": float(lr)})
    return history, one_by_one({name: tensor.detach() for name, tensor in model.state_dict().items()})

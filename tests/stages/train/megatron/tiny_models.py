"""Tiny Hugging Face models with non-trivial weights, samples for them, and what transformers and torch make of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.train.megatron.packing import PackedMicroBatch, PackedSample
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
MODELS = ("llama", "qwen2", "qwen3")


def save_tiny_model(kind: str, folder: Path) -> Path:
    """Llama has tied embeddings and Llama 3 rotary scaling, Qwen2 untied ones and biases, Qwen3 query/key norms."""
    import transformers

    rope = {"rope_type": "default", "rope_theta": 10000.0}
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
    }
    config = {
        "llama": lambda: transformers.LlamaConfig(**shape, rope_parameters=llama3, tie_word_embeddings=True),
        "qwen2": lambda: transformers.Qwen2Config(**shape, rope_parameters=rope, tie_word_embeddings=False),
        "qwen3": lambda: transformers.Qwen3Config(**shape, rope_parameters=rope, tie_word_embeddings=True, head_dim=16),
    }[kind]()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def load_transformers_model(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


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
    return history, {name: tensor.detach() for name, tensor in model.state_dict().items()}

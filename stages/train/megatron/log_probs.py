"""Log-probs and entropies of tokens from logits whose vocabulary is split over tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor

from stages.train.megatron.packing import Nuclei

ENTROPY_CHUNK = 256


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """[N, V / tp] in float32, divided by the temperature."""
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def log_probs_of(scaled_logits: Tensor, targets: Tensor) -> Tensor:
    """[N] natural logs; overwrites the logits, so take entropies before."""
    log_probs: Tensor = vocab_parallel_cross_entropy(scaled_logits, targets).neg()
    return log_probs


def keep_nuclei(scaled_logits: Tensor, nuclei: Nuclei, targets: Tensor) -> Tensor:
    """Logits of minus infinity outside of what each token was drawn from. Its own target is always kept."""
    rank, width = parallel_state.get_tensor_model_parallel_rank(), scaled_logits.shape[-1]
    device = scaled_logits.device
    lengths = torch.from_numpy(np.diff(nuclei.offsets)).to(device)
    rows = torch.arange(len(lengths), device=device)
    kept_rows = torch.cat([rows.repeat_interleave(lengths), rows])
    kept_ids = torch.cat([torch.from_numpy(nuclei.ids).to(device), targets]) - rank * width
    here = (kept_ids >= 0) & (kept_ids < width)
    hidden = (lengths > 0).unsqueeze(-1).repeat(1, width)
    hidden[kept_rows[here], kept_ids[here]] = False
    return scaled_logits.masked_fill(hidden, float("-inf"))


def entropies_of(scaled_logits: Tensor, *, with_gradient: bool) -> Tensor:
    """[N] entropy of each token's distribution over the whole vocabulary, in nats."""
    group = parallel_state.get_tensor_model_parallel_group()
    if with_gradient:
        entropies: Tensor = _VocabParallelEntropy.apply(scaled_logits, group)  # type: ignore[no-untyped-call]
        return entropies
    with torch.no_grad():
        chunks = [_entropy(chunk, group)[1] for chunk in torch.split(scaled_logits.detach(), ENTROPY_CHUNK)]
        return torch.cat(chunks)


def _entropy(logits: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Probabilities [N, V / tp] and entropies [N]."""
    maximum = logits.max(dim=-1, keepdim=True).values
    distributed.all_reduce(maximum, distributed.ReduceOp.MAX, group=group)
    shifted = logits - maximum
    probabilities = shifted.exp()
    sums = torch.stack([probabilities.sum(dim=-1), (probabilities * shifted).sum(dim=-1)])
    distributed.all_reduce(sums, group=group)
    total, weighted = sums
    return probabilities.div_(total.unsqueeze(-1)), total.log() - weighted / total


class _VocabParallelEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor, group: Any) -> Tensor:
        probabilities, entropies = _entropy(logits, group)
        context.save_for_backward(probabilities, entropies)
        return entropies

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """With p = softmax(x): dH/dx = -p (log p + H)."""
        probabilities, entropies = context.saved_tensors
        slope = torch.special.xlogy(probabilities, probabilities) + probabilities * entropies.unsqueeze(-1)
        return slope.mul_(-gradient.unsqueeze(-1)), None

"""Log-probs and entropies of the response tokens of a micro-batch; a chunk of them at a time, if that is asked for.

A chunk's logits are made from its hidden states, and once more in the backward pass, so that no more than one chunk of
them is in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stages.train.megatron.log_probs import entropies_of, keep_nuclei, log_probs_of, scale_logits
from stages.train.megatron.packing import Nuclei
from stages.train.megatron.passes import Item, join_context

Head = Callable[[Tensor], Tensor]
"""From hidden states [M, H] to logits [M, V / tp]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What is asked of the tokens."""

    temperature: float

    entropies: bool

    with_gradient: bool
    """The loss depends on the entropies."""

    head: Head | None = field(repr=False)
    """Set if the model gives hidden states."""

    chunk_size: int
    """Tokens at a time, with `head`."""


def token_scores(output: Tensor, item: Item, scoring: Scoring) -> dict[str, Tensor]:
    """From what the model gave for an item, `log_probs` [N] and perhaps `entropies` [N]."""
    wanted, nuclei = item.share.wanted, item.micro_batch.nuclei
    targets = torch.from_numpy(item.micro_batch.targets[wanted]).to(output.device, non_blocking=True)
    count, size = len(wanted), len(wanted) if scoring.head is None else scoring.chunk_size
    parts = []
    for start in range(0, max(count, 1), max(size, 1)):
        part = slice(start, start + size)
        score = partial(
            _scores,
            targets=targets[part],
            nuclei=None if nuclei is None else nuclei.of(wanted[part]),
            scoring=scoring,
        )
        if scoring.head is None or not torch.is_grad_enabled():
            parts.append(score(output[part]))
        else:
            parts.append(checkpoint(score, output[part], use_reentrant=False, preserve_rng_state=False))
    names = ("log_probs", "entropies") if scoring.entropies else ("log_probs",)
    return {name: join_context(torch.cat([part[number] for part in parts]), item) for number, name in enumerate(names)}


def _scores(output: Tensor, *, targets: Tensor, nuclei: Nuclei | None, scoring: Scoring) -> tuple[Tensor, ...]:
    logits = scale_logits(output if scoring.head is None else scoring.head(output), scoring.temperature)
    entropies = (entropies_of(logits, with_gradient=scoring.with_gradient),) if scoring.entropies else ()
    if nuclei is not None:
        logits = keep_nuclei(logits, nuclei, targets)
    return (log_probs_of(logits, targets), *entropies)

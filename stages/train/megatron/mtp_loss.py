"""The loss of the layers for multi-token prediction (MTP).

They learn from the model, and the model does not learn from them: the hidden states and embeddings that they see, and
the output layer that they share, get no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.train.algorithm.reducers import weighted_sum
from stages.train.megatron.mtp_rows import WEIGHT
from stages.train.megatron.passes import Item, MtpItem
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.token_scores import Head, Scoring, token_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLoss:
    """The loss of a micro-batch's MTP layers, added to its own."""

    settings: TrainerSettings

    head: Head | None
    """As in `Scoring`."""

    def added_to(self, loss: Tensor, item: Item) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss with the mean of the layers' cross entropies, and as metrics each of them and their sum.

        Unlike slime's, a prediction counts by the mask and weight of the very token that it is about, whatever the
        micro-batch.
        """
        losses = [self._of_layer(layer) for layer in item.mtp]
        if not losses:
            return loss, {}
        total = torch.stack(losses).sum()
        each = {f"mtp_{number}_loss": value.detach() for number, value in enumerate(losses, start=1)}
        factor = self.settings.mtp_loss_scaling_factor / len(losses)
        return loss + factor * total, {"mtp_loss": total.detach(), **each}

    def _of_layer(self, layer: MtpItem) -> Tensor:
        assert layer.output is not None
        scoring = Scoring(
            temperature=1.0,
            entropies=False,
            with_gradient=False,
            head=self.head,
            chunk_size=self.settings.log_probs_chunk_size,
        )
        log_probs = token_scores(layer.output, layer, scoring)["log_probs"]
        weights = torch.from_numpy(layer.micro_batch.columns[WEIGHT]).to(log_probs.device)
        return weighted_sum(-log_probs, weights)

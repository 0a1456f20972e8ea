"""Which tokens of a conversation the assistant wrote, by slime's class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_stages.data.loss_masks import MaskKind, Message, mask_messages


class MultiTurnLossMaskGenerator:
    """Masks conversations by one chat template."""

    def __init__(self, tokenizer: Any, tokenizer_type: MaskKind = "qwen") -> None:
        self.tokenizer = tokenizer
        self.tokenizer_type = tokenizer_type

    def get_loss_mask(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> tuple[list[int], list[int]]:
        """Tokens, and 1 for those that the assistant wrote."""
        masked = mask_messages(self.tokenizer, messages, self.tokenizer_type, tools=tools)
        return masked.tokens, masked.mask

    def get_response_lengths(self, loss_masks: Sequence[Sequence[int]]) -> list[int]:
        return get_response_lengths(loss_masks)

    def get_text_from_loss_mask(self, token_ids: Sequence[int], loss_masks: Sequence[int]) -> list[str]:
        """The texts of what the assistant wrote, one for each run of its tokens."""
        runs: list[list[int]] = []
        for token, before, mask in zip(token_ids, [0, *loss_masks], loss_masks, strict=False):
            if mask and not before:
                runs.append([])
            if mask:
                runs[-1].append(token)
        return [self.tokenizer.decode(run) for run in runs]


def get_response_lengths(loss_masks: Sequence[Sequence[int]]) -> list[int]:
    """Of each, the tokens from the first trained one on."""
    return [len(mask) - list(mask).index(1) if 1 in mask else 0 for mask in loss_masks]

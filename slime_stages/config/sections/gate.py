"""[gate]: what the train stage refuses to train on."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from slime_stages.config.types import Section, Share


class Gate(Section):
    title: ClassVar[str] = "what the train stage refuses to train on"

    warn_probs_diff: PositiveFloat = 0.005
    """Warn where engine and trainer give a token probabilities that differ by more than this on average."""

    refuse_probs_diff: PositiveFloat = 0.05
    """Refuse above this average. Below 0.005 is usual; above 0.01 weights, template or numerics deserve a look."""

    max_truncated_share: Share = 1.0
    """Refuse an iteration in which more samples than this share were cut at their longest; 1 for never."""

    max_zero_std_share: Share = 1.0
    """Refuse an iteration in which the samples of more prompts than this share have equal rewards; 1 for never."""

    max_null_reward_share: Share = 0.5
    """Refuse an iteration in which more samples than this share have no reward; 1 for never."""

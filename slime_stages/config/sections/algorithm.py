"""[algorithm]: from rewards to a loss."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from slime_stages.config.types import Section


class Algorithm(Section):
    title: ClassVar[str] = "from rewards to a loss"

    advantage_estimator: Literal["grpo", "gspo", "cispo"] = "grpo"
    """How samples of a prompt are compared and the ratio is taken: per token (grpo), per sequence (gspo), or as a
    clipped weight (cispo)."""

    eps_clip: NonNegativeFloat = 0.2
    """The policy ratio counts down to 1 - eps_clip."""

    eps_clip_high: NonNegativeFloat | None = None
    """The policy ratio counts up to 1 + eps_clip_high; `eps_clip` without it."""

    eps_clip_c: float | None = None
    """Dual clip: bounds the loss of a negative advantage at this many times it; above 1."""

    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    calculate_per_token_loss: bool = False
    """Every token of a step weighs the same, instead of every rollout."""

    disable_grpo_std_normalization: bool = False
    """Do not divide rewards by their group's standard deviation; always so where a prompt has one sample."""

    disable_rewards_normalization: bool = False
    """Take rewards as they are, without subtracting their group's mean."""

    use_rollout_logprobs: bool = False
    """Old log-probs are those of the engine: one forward pass less."""

    use_tis: bool = False
    """Weigh tokens by trainer over engine probability, cut at `tis_clip`, against the gap between the two."""

    tis_clip: PositiveFloat = 2.0
    """Largest such weight."""

    tis_clip_low: NonNegativeFloat = 0.0
    """Smallest such weight."""

    null_reward: Literal["drop"] | float = "drop"
    """What to do with a sample whose scoring failed: leave it out and say so, or train on this number."""

    @property
    def grpo_std_normalization(self) -> bool:
        return not self.disable_grpo_std_normalization

    @property
    def rewards_normalization(self) -> bool:
        return not self.disable_rewards_normalization

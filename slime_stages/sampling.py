"""How samples of a split are drawn: the engine's sampling parameters, with slime's fall-backs for evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime_stages.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters shared by all samples of a split; each sample adds its own seed."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    stop: tuple[str, ...] | None
    stop_token_ids: tuple[int, ...] | None
    skip_special_tokens: bool

    def params(self, seed: int) -> dict[str, Any]:
        """As the engine takes them, for one sample."""
        params: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": self.max_new_tokens,
            "skip_special_tokens": self.skip_special_tokens,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
            "sampling_seed": seed,
        }
        if self.stop is not None:
            params["stop"] = list(self.stop)
        if self.stop_token_ids is not None:
            params["stop_token_ids"] = list(self.stop_token_ids)
        return params


def sampling_of(config: Config, split: str = "train") -> Sampling:
    """Sampling of training rollouts, or of an evaluation set."""
    rollout, evaluation = config.rollout, config.eval
    training = split == "train"

    def either(for_eval: Any, for_rollout: Any) -> Any:
        return for_rollout if training or for_eval is None else for_eval

    return Sampling(
        temperature=either(evaluation.eval_temperature, rollout.rollout_temperature),
        top_p=either(evaluation.eval_top_p, rollout.rollout_top_p),
        top_k=either(evaluation.eval_top_k, rollout.rollout_top_k),
        max_new_tokens=either(evaluation.eval_max_response_len, rollout.rollout_max_response_len),
        stop=rollout.rollout_stop,
        stop_token_ids=rollout.rollout_stop_token_ids,
        skip_special_tokens=rollout.rollout_skip_special_tokens,
    )

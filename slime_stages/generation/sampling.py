"""How samples of a split are drawn: the engine's sampling parameters, and what an evaluation set says besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime_stages.config import Config
from slime_stages.config.eval_dataset import resolved_dataset
from slime_stages.sample import Sample


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
    no_stop_trim: bool = True
    min_new_tokens: int | None = None
    repetition_penalty: float | None = None
    max_context_len: int | None = None
    """Most tokens of prompt and response together."""

    def params(self, seed: int, *, prompt_length: int = 0) -> dict[str, Any]:
        """As the engine takes them, for one sample; the room that a prompt leaves is cut off at one token."""
        room = None if self.max_context_len is None else max(1, self.max_context_len - prompt_length)
        params: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": self.max_new_tokens if room is None else min(room, self.max_new_tokens),
            "skip_special_tokens": self.skip_special_tokens,
            "no_stop_trim": self.no_stop_trim,
            "spaces_between_special_tokens": False,
            "sampling_seed": seed,
        }
        if self.stop is not None:
            params["stop"] = list(self.stop)
        if self.stop_token_ids is not None:
            params["stop_token_ids"] = list(self.stop_token_ids)
        if self.min_new_tokens is not None:
            params["min_new_tokens"] = min(self.min_new_tokens, params["max_new_tokens"])
        if self.repetition_penalty is not None:
            params["repetition_penalty"] = self.repetition_penalty
        return params


def sampling_of(config: Config, split: str = "train") -> Sampling:
    """Sampling of training rollouts, or of an evaluation set."""
    if split != "train":
        return _eval_sampling(config, split)
    rollout = config.rollout
    return Sampling(
        temperature=rollout.rollout_temperature,
        top_p=rollout.rollout_top_p,
        top_k=rollout.rollout_top_k,
        max_new_tokens=rollout.rollout_max_response_len,
        stop=rollout.rollout_stop,
        stop_token_ids=rollout.rollout_stop_token_ids,
        skip_special_tokens=rollout.rollout_skip_special_tokens,
        max_context_len=rollout.rollout_max_context_len,
    )


def generate_path_of(config: Config, split: str = "train") -> str | None:
    """The user's generate function for a split; None: one call to the engine."""
    if split == "train":
        return config.rollout.custom_generate_function_path
    return resolved_dataset(config, split).custom_generate_function_path


def mark_for_evaluation(sample: Sample, config: Config, split: str) -> None:
    """Give a new sample what its evaluation set says of reward, metadata and generate function."""
    dataset = resolved_dataset(config, split)
    sample.generate_function_path = dict(config.eval.datasets)[split].custom_generate_function_path
    if dataset.custom_rm_path != config.reward.custom_rm_path:
        sample.custom_rm_path = dataset.custom_rm_path
    own = {} if dataset.rm_type is None else {"rm_type": dataset.rm_type}
    if own or dataset.metadata_overrides:
        sample.metadata = {**sample.metadata, **own, **dataset.metadata_overrides}


def _eval_sampling(config: Config, split: str) -> Sampling:
    dataset = resolved_dataset(config, split)
    rollout = config.rollout

    def either(own: Any, fallback: Any) -> Any:
        return fallback if own is None else own

    return Sampling(
        temperature=either(dataset.temperature, rollout.rollout_temperature),
        top_p=either(dataset.top_p, rollout.rollout_top_p),
        top_k=either(dataset.top_k, rollout.rollout_top_k),
        max_new_tokens=either(dataset.max_response_len, rollout.rollout_max_response_len),
        stop=dataset.stop,
        stop_token_ids=dataset.stop_token_ids,
        skip_special_tokens=bool(dataset.skip_special_tokens),
        no_stop_trim=either(dataset.no_stop_trim, True),
        min_new_tokens=dataset.min_new_tokens,
        repetition_penalty=dataset.repetition_penalty,
        max_context_len=dataset.max_context_len,
    )

"""[rollout]: how many samples an iteration has and how they are drawn."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from slime_stages.config.types import Section, Share


class Rollout(Section):
    title: ClassVar[str] = "how many samples an iteration has and how they are drawn"
    in_plan: ClassVar[frozenset[str]] = frozenset({"staleness"})

    rollout_batch_size: PositiveInt
    """Prompts in one iteration."""

    n_samples_per_prompt: PositiveInt = 1
    """Samples drawn for each prompt; their rewards are compared with one another."""

    rollout_shards: PositiveInt = 1
    """Parts that an iteration's prompts are cut into: each is one task of the rollout job array and one file."""

    staleness: NonNegativeInt = 0
    """Weight versions by which generation lags behind training. From 1 on, iteration i is generated while the ones
    before it are trained; `use_tis` or `use_rollout_logprobs` correct for it. slime's `train_async` is 1."""

    rollout_temperature: float = 1.0
    """Temperature of sampling and of the trained log-probs; above 0."""

    rollout_top_p: Share = 1.0
    """Sample among the likeliest tokens that hold this much probability together."""

    rollout_top_k: int = -1
    """Sample among this many likeliest tokens; -1 for all."""

    rollout_max_response_len: PositiveInt = 1024
    """Most tokens of a response, tool output included; a longer one is cut and marked `truncated`."""

    rollout_max_context_len: PositiveInt | None = None
    """Most tokens of prompt and response together."""

    rollout_stop: tuple[str, ...] | None = None
    """Texts that end a response; they stay in it."""

    rollout_stop_token_ids: tuple[int, ...] | None = None
    """Token ids that end a response, besides the tokenizer's own."""

    rollout_skip_special_tokens: bool = False
    """Leave special tokens out of the decoded text, not of the tokens."""

    custom_generate_function_path: str | None = None
    """`module.function` that produces a sample in place of one call to the engine: agents, tools, many turns."""

    rollout_sample_hook_path: tuple[str, ...] = ()
    """`module.function`s called on every finished sample, in this order."""

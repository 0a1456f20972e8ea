"""[rollout]: how many samples an iteration has and how they are drawn."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from slime_stages.config.types import Section, Share
from slime_stages.data.loss_masks import MaskKind


class Rollout(Section):
    title: ClassVar[str] = "how many samples an iteration has and how they are drawn"
    in_plan: ClassVar[frozenset[str]] = frozenset({"staleness"})
    undigested: ClassVar[frozenset[str]] = frozenset({"streaming_wait_seconds", "trace_samples"})
    digested_if_set: ClassVar[frozenset[str]] = frozenset(
        {
            "over_sampling_batch_size",
            "dynamic_sampling_filter_path",
            "partial_rollout",
            "mask_offpolicy_in_partial_rollout",
            "rollout_streaming",
            "rollout_quorum",
            "rollout_deadline",
            "rollout_max_refills",
            "buffer_filter_path",
            "loss_mask_type",
            "rollout_sample_filter_path",
            "rollout_all_samples_process_path",
        }
    )

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

    loss_mask_type: MaskKind = "qwen"
    """Which tokens of a conversation the assistant wrote, for `slime.rollout.sft_rollout.generate_rollout`: how the
    model's chat template treats its turns."""

    rollout_sample_hook_path: tuple[str, ...] = ()
    """`module.function`s called on every finished sample, in this order."""

    trace_samples: bool = True
    """Keep with each sample when it was generated, called tools and was scored; `slime-stages trace` shows it."""

    over_sampling_batch_size: PositiveInt | None = None
    """Prompts asked at a time, until `rollout_batch_size` are kept; as many without it. What is asked beyond those is
    handed over to a later iteration, never thrown away."""

    dynamic_sampling_filter_path: str | None = None
    """`module.function` that says of each scored group whether it is kept, such as
    `slime_stages.generation.filters.check_reward_nonzero_std`. Rewards are then made while generating."""

    rollout_max_refills: PositiveInt = 16
    """Most times that a shard asks for further prompts because groups were dropped; then it fails and says which."""

    partial_rollout: bool = False
    """Hand over what unfinished responses have so far, to be continued; without it they are asked anew."""

    mask_offpolicy_in_partial_rollout: bool = False
    """Do not train on the tokens of a continued response that older weights wrote."""

    rollout_quorum: Share = 1.0
    """Share of a shard's groups that is enough: the rest is not waited for, but handed over."""

    rollout_deadline: PositiveFloat | None = None
    """Seconds of generating after which a shard is finished with what it has, one group at least."""

    rollout_streaming: bool = False
    """Keep `over_sampling_batch_size` prompts in flight from one iteration to the next: a shard is finished when it has
    enough groups, and what still runs goes on. slime's
    `slime.rollout.fully_async_rollout.generate_rollout_fully_async` as `rollout_function_path` turns it on."""

    streaming_wait_seconds: PositiveFloat = 7200.0
    """Longest wait of such a rollout for the plan and the weights of its next iteration; then its job ends, to be begun
    again when they are there."""

    buffer_filter_path: str | None = None
    """`module.function` that chooses which of the handed-over groups to take first; the oldest without it."""

    rollout_sample_filter_path: str | None = None
    """`module.function` that sees the kept groups and sets `remove_sample` on what is not to be trained on."""

    rollout_all_samples_process_path: str | None = None
    """`module.function` that sees all finished groups, the dropped ones too."""

    @property
    def carries(self) -> bool:
        """Whether anything can be left over that a later iteration takes."""
        is_over_sampled = (self.over_sampling_batch_size or 0) > self.rollout_batch_size
        is_cut = self.rollout_quorum < 1 or self.rollout_deadline is not None or self.rollout_streaming
        return is_over_sampled or is_cut or self.partial_rollout or self.dynamic_sampling_filter_path is not None

    @property
    def scores(self) -> bool:
        """Whether rewards are made while generating, for a function that needs them."""
        paths = (
            self.dynamic_sampling_filter_path,
            self.rollout_sample_filter_path,
            self.rollout_all_samples_process_path,
        )
        return any(path is not None for path in paths)

"""`Sample`: one response to one prompt, with slime's field names, as generate and reward functions see it.

Plug-ins set attributes on it freely, so it is mutable; attributes that are no field survive `to_dict` and shards.
Everything that is parallel to the response grows through `append_response_tokens` only, which keeps it aligned.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime_stages.data.counters import PrefixCacheInfo, SpecInfo
from slime_stages.data.weight_spans import SPANS_KEY, spans_with, versions_told


class Status(StrEnum):
    """How generation of a sample ended."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    """Stopped by a length limit."""
    ABORTED = "aborted"
    """Stopped from outside; may go on later from its tokens."""
    FAILED = "failed"
    """A tool, an API or a parser failed; the tokens so far are valid."""


@dataclass
class Sample:
    """One response to one prompt.

    Shapes: P prompt tokens, R response tokens (`response_length`), L layers, K experts per token.
    """

    group_index: int | None = None
    """Counts prompts over the whole run; the samples of one prompt share it."""
    index: int | None = None
    """Counts samples over the whole run: prompt position × samples per prompt + number within the group."""
    rollout_id: int | None = None
    """Identity of the execution; samples that one execution fanned out into share it. None: its own execution."""
    prompt: str | list[dict[str, Any]] = ""
    """The prompt as text, or as chat messages where no chat template is applied."""
    tokens: list[int] = field(default_factory=list)
    """[P + R] prompt ids followed by response ids."""
    multimodal_inputs: dict[str, Any] | None = None
    """Raw media of the prompt, for example `{"images": [...]}`."""
    multimodal_train_inputs: dict[str, Any] | None = None
    """What the processor made of the media, without `input_ids` and `attention_mask`."""
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    """The response as text, for rewards and people; never tokenised again."""
    response_length: int = 0
    """R, tokens of tools and observations included."""
    label: Any = None
    """Ground truth for the reward."""
    reward: float | dict[str, Any] | None = None
    """None: not scored. A dict needs `--reward-key`."""
    loss_mask: list[int] | None = None
    """[R] 1 on tokens that the model wrote and that are trained on. None: all of them."""
    weight_versions: list[str] = field(default_factory=list)
    """Those of each engine call that told its weights, in turn; where they differ, `metadata["weight_spans"]` says
    which tokens each of them wrote."""
    rollout_log_probs: list[float] | None = None
    """[R] natural log under the sampler; 0.0 where `loss_mask` is 0."""
    rollout_top_p_token_ids: NDArray[np.int32] | None = None
    """Ids of the nuclei, one after the other; token i has `ids[offsets[i]:offsets[i + 1]]`."""
    rollout_top_p_token_offsets: NDArray[np.int32] | None = None
    """[R + 1] into `rollout_top_p_token_ids`."""
    rollout_routed_experts: NDArray[np.int32] | None = None
    """[P + R - 1, L, K] router choices for every input position."""
    remove_sample: bool = False
    """Train on none of its tokens; it still counts in reward statistics and denominators."""
    teacher_log_probs: list[float] | None = None
    """[R] natural log under the teacher of on-policy distillation."""
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    """Generate function of this sample, before the run's."""
    custom_rm_path: str | None = None
    """Reward function of this sample, before the run's."""
    train_metadata: dict[str, Any] | None = None
    """Handed to the loss."""
    session_id: str | None = None
    """Requests of one session go to one engine."""
    non_generation_time: float = 0.0
    """Seconds spent outside the engine: tools, environments."""
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)
    prompt_id: str | None = None
    """Content hash of the prompt's row in the prompt table."""
    sampling_params: dict[str, Any] | None = None
    """What the engine was asked for, seed included."""
    generate_seconds: float | None = None
    """Wall clock from the first request to the last token."""
    trace: dict[str, Any] | None = field(default=None, compare=False)
    """What happened to it and when, see `trace.py`. None: it is not traced."""

    def get_reward_value(self, args: Any) -> Any:
        """The number to train on: the reward, or its entry `args.reward_key`."""
        key = getattr(args, "reward_key", None)
        if not key:
            return self.reward
        assert isinstance(self.reward, dict)
        return self.reward[key]

    @property
    def prompt_length(self) -> int:
        return len(self.tokens) - self.response_length

    @property
    def effective_response_length(self) -> int:
        """Response tokens that the model wrote."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def to_dict(self) -> dict[str, Any]:
        """All attributes, unknown ones included, with plain values for the status and the counters."""
        return dict(
            self.__dict__,
            status=Status(self.status).value,
            spec_info=asdict(self.spec_info),
            prefix_cache_info=asdict(self.prefix_cache_info),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        """The inverse of `to_dict`; keys that are no field become attributes.

        Raises KeyError without `status`, ValueError for a status that does not exist.
        """
        known = {key: value for key, value in data.items() if key in FIELD_NAMES}
        known["status"] = Status(data["status"])
        known["spec_info"] = SpecInfo(**data.get("spec_info") or {})
        known["prefix_cache_info"] = PrefixCacheInfo(**data.get("prefix_cache_info") or {})
        sample = cls(**known)
        for key in data.keys() - FIELD_NAMES:
            setattr(sample, key, data[key])
        return sample

    def append_response_tokens(
        self,
        args: Any,
        *,
        tokens: Sequence[int] = (),
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append what an engine call (or, with `trainable=False`, a tool) added to the response.

        Trainable tokens need their log-probs, others must come without. ValueError, and the sample as it was, if
        anything would get out of line.
        """
        tokens, meta_info = list(tokens), meta_info or {}
        new_log_probs = _checked_log_probs(tokens, log_probs, trainable)
        before = dict(self.__dict__)
        try:
            self._append_parallel(args, tokens, new_log_probs, trainable, meta_info)
            self.check_lengths()
        except ValueError:
            self.__dict__.update(before)
            raise
        if text is not None:
            self.response += text
        if update_terminal_info and "finish_reason" in meta_info:
            self._take_terminal_info(args, meta_info)

    def check_lengths(self) -> None:
        """ValueError if anything parallel to the response has another length."""
        for name in ("loss_mask", "rollout_log_probs", "teacher_log_probs"):
            values = getattr(self, name)
            if values is not None and len(values) != self.response_length:
                raise ValueError(f"{name} has {len(values)} entries for {self.response_length} response tokens")
        if self.response_length > len(self.tokens):
            raise ValueError(f"{self.response_length} response tokens, but only {len(self.tokens)} tokens in all")
        offsets = self.rollout_top_p_token_offsets
        if offsets is not None and len(offsets) != self.response_length + 1:
            raise ValueError(f"{len(offsets)} top-p offsets for {self.response_length} response tokens")
        if offsets is not None and (ids := self.rollout_top_p_token_ids) is not None and offsets[-1] != len(ids):
            raise ValueError(f"top-p offsets end at {offsets[-1]}, but there are {len(ids)} ids")

    def _append_parallel(
        self, args: Any, tokens: list[int], log_probs: list[float], trainable: bool, meta_info: dict[str, Any]
    ) -> None:
        """Everything that is rebound, not altered, so that the caller can take it back."""
        old_length = self.response_length
        if tokens:
            self._append_mask_and_log_probs(log_probs, trainable, old_length)
            self.tokens = [*self.tokens, *tokens]
            self.response_length = old_length + len(tokens)
        self._append_top_p(meta_info, len(tokens), old_length, trainable)
        if meta_info.get("routed_experts") is not None:
            self._take_routed_experts(args, meta_info)

    def _append_mask_and_log_probs(self, log_probs: list[float], trainable: bool, old_length: int) -> None:
        if self.rollout_log_probs is None:
            if old_length and trainable:
                raise ValueError(f"the {old_length} response tokens so far have no log-probs, so none can be appended")
            self.rollout_log_probs = [0.0] * old_length
        mask = self.loss_mask if self.loss_mask is not None else [1] * old_length
        self.loss_mask = [*mask, *([int(trainable)] * len(log_probs))]
        self.rollout_log_probs = [*self.rollout_log_probs, *log_probs]

    def _append_top_p(self, meta_info: dict[str, Any], count: int, old_length: int, trainable: bool) -> None:
        ids = _first(meta_info, "top_p_token_ids", "top_p_kept_token_ids")
        offsets = _first(meta_info, "top_p_token_offsets", "top_p_kept_token_offsets")
        if (ids is None) != (offsets is None):
            raise ValueError("top-p replay needs both token ids and offsets, got one of them")
        held = self.rollout_top_p_token_offsets
        if ids is not None and count:
            new_ids, new_offsets = int32_array(ids), int32_array(offsets)
            ends = (int(new_offsets[0]), int(new_offsets[-1])) if len(new_offsets) else None
            if ends != (0, len(new_ids)) or len(new_offsets) != count + 1:
                raise ValueError(
                    f"top-p offsets must be {count + 1}, from 0 to {len(new_ids)}, got {len(new_offsets)}: {ends}"
                )
            if held is None:
                if any((self.loss_mask or [])[:old_length]):
                    raise ValueError(f"the {old_length} response tokens so far have no top-p ids, and need them")
                held = np.zeros(old_length + 1, np.int32)
                self.rollout_top_p_token_ids = np.zeros(0, np.int32)
            assert self.rollout_top_p_token_ids is not None
            self.rollout_top_p_token_ids = np.concatenate([self.rollout_top_p_token_ids, new_ids])
            self.rollout_top_p_token_offsets = np.concatenate([held, new_offsets[1:] + held[-1]])
        elif held is not None and count and not trainable:
            self.rollout_top_p_token_offsets = np.concatenate([held, np.full(count, held[-1], np.int32)])

    def _take_routed_experts(self, args: Any, meta_info: dict[str, Any]) -> None:
        shape = (args.num_layers, args.moe_router_topk)
        start = meta_info.get("routed_experts_start_len", 0)
        rows = max(0, len(self.tokens) - 1 - start)
        flat = int32_array(meta_info["routed_experts"])
        if flat.size != rows * shape[0] * shape[1]:
            raise ValueError(f"routed experts: {flat.size} numbers for {rows} rows of {shape[0]} layers × {shape[1]}")
        new = flat.reshape(rows, *shape)
        if start:
            held = self.rollout_routed_experts
            if held is None or len(held) < start:
                have = 0 if held is None else len(held)
                raise ValueError(f"routed experts start at row {start}, but only {have} rows are known")
            new = np.concatenate([held[:start], new])
        self.rollout_routed_experts = new

    def _take_terminal_info(self, args: Any, meta_info: dict[str, Any]) -> None:
        if getattr(args, "sglang_speculative_algorithm", None) or meta_info.get("spec_verify_ct"):
            self.spec_info.add(meta_info)
        self.prefix_cache_info.add(meta_info)
        if meta_info.get("weight_version") is not None:
            known = self.metadata.get(SPANS_KEY, [])
            if spans := spans_with(known, self.weight_versions, meta_info, self.response_length):
                self.metadata = {**self.metadata, SPANS_KEY: spans}
            self.weight_versions = [*self.weight_versions, *versions_told(meta_info)]
        reason = meta_info["finish_reason"]
        kind = reason.get("type") if isinstance(reason, dict) else reason
        self.status = _STATUS_OF_FINISH_REASON.get(str(kind), self.status)


for _part in (Status, SpecInfo, PrefixCacheInfo):
    setattr(Sample, _part.__name__, _part)  # as `Sample.Status` plug-ins know them
FIELD_NAMES = frozenset(f.name for f in fields(Sample))
_STATUS_OF_FINISH_REASON = {"length": Status.TRUNCATED, "abort": Status.ABORTED, "stop": Status.COMPLETED}


def _checked_log_probs(tokens: list[int], log_probs: Sequence[float] | None, trainable: bool) -> list[float]:
    if log_probs is not None and len(log_probs) != len(tokens):
        raise ValueError(f"{len(log_probs)} log-probs for {len(tokens)} tokens")
    if tokens and trainable and log_probs is None:
        raise ValueError(f"{len(tokens)} trainable response tokens without log-probs")
    if tokens and not trainable and log_probs is not None:
        raise ValueError(f"log-probs given for {len(tokens)} tokens that are not trainable")
    return list(log_probs) if log_probs is not None else [0.0] * len(tokens)


def _first(mapping: dict[str, Any], *keys: str) -> Any:
    return next((mapping[key] for key in keys if mapping.get(key) is not None), None)


def int32_array(value: Any) -> NDArray[np.int32]:
    """Little-endian int32 numbers from base64 text, bytes, a tensor or any array."""
    if isinstance(value, str):
        value = base64.b64decode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, dtype="<i4").astype(np.int32)
    return np.asarray(value).astype(np.int32).reshape(-1)

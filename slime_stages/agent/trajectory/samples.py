"""Samples of segments: tokens, masks and log-probs as sampled, with what a base sample says of its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_stages.agent.trajectory.segments import Segment, Span
from slime_stages.agent.trajectory.turns import Turn
from slime_stages.sample import Sample, Status, int32_array

COPIED = (
    "group_index",
    "index",
    "prompt",
    "label",
    "prompt_id",
    "session_id",
    "sampling_params",
    "generate_function_path",
    "custom_rm_path",
)
_STATUSES = {"length": Status.TRUNCATED, "abort": Status.ABORTED}


def sample_of(
    segment: Segment,
    base: Sample,
    metadata: Mapping[str, Any],
    *,
    max_tokens: int,
    expert_shape: tuple[int, int] | None,
) -> Sample | None:
    """The sample of a segment, cut off on the right after `max_tokens` (0: nowhere); None if it would train nothing."""
    is_cut = 0 < max_tokens < len(segment.ids)
    spans = _cut(segment.spans, max_tokens - len(segment.prompt)) if is_cut else segment.spans
    if not any(span.turn is not None and span.turn.chosen[: len(span.ids)].any() for span in spans):
        return None
    sample = Sample(
        **{name: getattr(base, name) for name in COPIED},
        rollout_id=base.rollout_id if base.rollout_id is not None else base.index,
        tokens=segment.prompt.tolist(),
        metadata={**base.metadata, **metadata},
    )
    for span in spans:
        _append(sample, span)
    if expert_shape is not None and (rows := segment.last_turn.trail.rows()) is not None:
        sample.rollout_routed_experts = rows[: len(sample.tokens) - 1].reshape(-1, *expert_shape)
    sample.status = Status.TRUNCATED if is_cut else _STATUSES.get(segment.last_turn.finish_reason, Status.COMPLETED)
    return sample


def split_reward(samples: list[Sample]) -> None:
    """Give each of the samples its share of the reward that all of them have."""
    for sample in samples:
        if isinstance(sample.reward, dict):
            sample.reward = {name: _share(value, len(samples)) for name, value in sample.reward.items()}
        elif sample.reward is not None:
            sample.reward = sample.reward / len(samples)


def _share(value: Any, count: int) -> Any:
    return value / count if isinstance(value, int | float) and not isinstance(value, bool) else value


def _append(sample: Sample, span: Span) -> None:
    if span.turn is None:
        sample.append_response_tokens(None, tokens=span.ids.tolist(), trainable=False)
        return
    meta = {**_said_of(span.turn, len(span.ids)), "finish_reason": span.turn.finish_reason}
    sample.append_response_tokens(
        None,
        tokens=span.ids.tolist(),
        log_probs=span.turn.log_probs[: len(span.ids)].tolist(),
        meta_info=meta,
    )
    chosen = span.turn.chosen[: len(span.ids)]
    if not chosen.all():
        assert sample.loss_mask is not None
        sample.loss_mask = [*sample.loss_mask[: -len(chosen)], *chosen.astype(int).tolist()]


def _said_of(turn: Turn, length: int) -> dict[str, Any]:
    """What the engine says of the first `length` tokens of a turn."""
    meta = dict(turn.meta_info)
    if length == turn.output_length:
        return meta
    if "top_p_token_offsets" in meta:
        offsets = int32_array(meta["top_p_token_offsets"])[: length + 1]
        ids = int32_array(meta["top_p_token_ids"])[: offsets[-1]]
        meta |= {"top_p_token_offsets": offsets, "top_p_token_ids": ids}
    if told := meta.get("weight_versions"):
        begun = [span for span in told if span["start"] < length]
        meta["weight_versions"] = [{**span, "end": min(span["end"], length)} for span in begun]
    return meta


def _cut(spans: list[Span], length: int) -> list[Span]:
    """The first `length` tokens of the spans."""
    kept: list[Span] = []
    for span in spans:
        if length <= 0:
            break
        kept.append(Span(span.ids[:length], span.turn))
        length -= len(span.ids)
    return kept

"""One call to an engine for a sample, which goes on from the tokens that are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from slime_stages.data.decoding import Decoder
from slime_stages.sample import Sample, Status
from slime_stages.trace.spans import build_sglang_meta_trace_attrs, trace_span

if TYPE_CHECKING:
    from slime_stages.serving.client import GenerateOutput

Ask = Callable[[dict[str, Any], dict[str, Any]], Awaitable["GenerateOutput"]]
"""Has an engine continue the sample, with these sampling parameters and these other fields of a request."""


async def continue_response(
    args: Any, sample: Sample, sampling_params: dict[str, Any], *, ask: Ask, decode: Decoder
) -> Sample:
    """The sample with its answer; without asking, where nothing is left of its length."""
    if (params := params_left(sampling_params, sample)) is None:
        sample.status = Status.TRUNCATED
        return sample
    extra = {"return_routed_experts": True} if args.use_rollout_routing_replay else {}
    with trace_span(sample, "sglang_generate", attrs={"max_new_tokens": params["max_new_tokens"]}) as span:
        answer = await ask(params, extra)
        span.update(build_sglang_meta_trace_attrs(answer.meta_info))
    sample.append_response_tokens(
        args,
        tokens=answer.output_ids,
        log_probs=answer.output_log_probs,
        meta_info=answer.meta_info,
        text=answer.text or decode(answer.output_ids),
    )
    return sample


def params_left(params: dict[str, Any], sample: Sample) -> dict[str, Any] | None:
    """Sampling parameters for the rest of a response; None if nothing is left of its length."""
    left = params["max_new_tokens"] - sample.response_length
    if left <= 0:
        return None
    fewest = {"min_new_tokens": max(0, params.get("min_new_tokens", 0) - sample.response_length)}
    return {**params, "max_new_tokens": left, **(fewest if "min_new_tokens" in params else {})}

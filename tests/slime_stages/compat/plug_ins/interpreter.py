"""A generate function that runs tools, and a reward that is a dict, as they are written for slime.

Requests are token ids; the sample grows by `append_response_tokens`, and spans say what takes time.
"""

from typing import Any

from slime.observability.trace_utils import trace_event, trace_function, trace_span
from slime.rollout.rm_hub.math_dapo_utils import compute_score
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

MAX_TURNS = 2


@trace_function("interpreter", target="sample")
async def interpret(sample: Sample, code: str) -> str:
    return f"\n<interpreter>{len(code)}</interpreter>\n"


async def generate(args, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Sample:
    state = GenerateState(args)
    assert state is GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    if sample.status == Sample.Status.ABORTED:
        sample.response, sample.response_length, sample.loss_mask, sample.rollout_log_probs = "", 0, None, None
    sample.tool_call_count = 0
    for _ in range(MAX_TURNS):
        payload = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
        with trace_span(sample, "model", attrs={"turn": sample.tool_call_count}) as span:
            output = await post(url, payload, headers={"X-SMG-Routing-Key": sample.session_id})
            span.set("tokens", output["meta_info"]["completion_tokens"])
        pairs = output["meta_info"]["output_token_logprobs"]
        sample.append_response_tokens(
            args,
            tokens=[pair[1] for pair in pairs],
            log_probs=[pair[0] for pair in pairs],
            meta_info=output["meta_info"],
            text=output["text"],
        )
        if sample.status == Sample.Status.ABORTED:
            return sample
        observation = await interpret(sample, output["text"])
        ids = state.tokenizer(observation, add_special_tokens=False)["input_ids"]
        sample.append_response_tokens(args, tokens=ids, trainable=False, text=observation)
        sample.tool_call_count += 1
    return sample


async def reward_func(args, sample, **kwargs):
    score = compute_score(sample.response, str(sample.label), strict_box_verify=True)
    if score["score"] < 0:
        score["score"] = min(-0.6, -1 + (sample.tool_call_count - 2) / 2 * 0.1)
    trace_event(sample, "judged", attrs={"calls": sample.tool_call_count})
    return {"score": score["score"], "calls": sample.tool_call_count}

"""A generate function and its reward that look things up between turns, as they are written for slime.

Requests are texts; tokens, masks and log-probs are put together by hand.
"""

import asyncio
import re

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

SETTINGS = {"max_turns": 2, "concurrency": 4, "facts": {"sum": "a sum adds numbers"}}
SEMAPHORE = asyncio.Semaphore(SETTINGS["concurrency"])


async def look_up(query):
    async with SEMAPHORE:
        await asyncio.sleep(0)
        return SETTINGS["facts"].get(query, f"{len(query)} characters")


async def observe(text):
    found = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    if found and found[1] == "answer":
        return "", True
    query = found[2] if found else text
    return f"\n<information>{await look_up(query)}</information>\n", False


async def generate(args, sample: Sample, sampling_params) -> Sample:
    assert not args.partial_rollout
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    prompt_ids = state.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    response, response_ids, mask, log_probs = "", [], [], []
    for _ in range(SETTINGS["max_turns"]):
        payload = {"text": sample.prompt + response, "sampling_params": sampling_params, "return_logprob": True}
        output = await post(url, payload)
        finish = output["meta_info"]["finish_reason"]["type"]
        if finish == "abort":
            sample.status = Sample.Status.ABORTED
            return sample
        pairs = output["meta_info"]["output_token_logprobs"]
        response += output["text"]
        response_ids += [pair[1] for pair in pairs]
        log_probs += [pair[0] for pair in pairs]
        mask += [1] * len(pairs)
        observation, is_done = await observe(output["text"])
        if is_done:
            break
        ids = state.tokenizer(observation, add_special_tokens=False)["input_ids"]
        response += observation
        response_ids += ids
        log_probs += [0.0] * len(ids)
        mask += [0] * len(ids)
    sample.tokens = prompt_ids + response_ids
    sample.response_length = len(response_ids)
    sample.response = response
    sample.loss_mask = mask
    sample.rollout_log_probs = log_probs
    match finish:
        case "length":
            sample.status = Sample.Status.TRUNCATED
        case "stop":
            sample.status = Sample.Status.COMPLETED
    return sample


async def reward_func(args, sample, **kwargs):
    if not isinstance(sample, Sample):
        raise TypeError("one sample at a time")
    return float(sample.response.count("<information>"))

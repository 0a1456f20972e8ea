"""Two solvers and a judge who train together, as a fan-out is written for slime: one sample a call of the model."""

import asyncio
import random
from copy import deepcopy

from slime.rollout.rm_hub import batched_async_rm
from slime.rollout.sglang_rollout import GenerateState, get_model_url
from slime.utils.http_utils import post
from slime.utils.types import Sample

SOLVERS = 2


async def ask(args, sample: Sample, prompt: str, params: dict) -> Sample:
    state = GenerateState(args)
    own = deepcopy(sample)
    ids = state.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    payload = {"input_ids": ids, "sampling_params": params, "return_logprob": True}
    output = await post(get_model_url(args, "default", "/generate"), payload)
    pairs = output["meta_info"]["output_token_logprobs"]
    own.prompt, own.tokens = prompt, ids + [pair[1] for pair in pairs]
    own.response, own.response_length = output["text"], len(pairs)
    own.loss_mask = [1] * len(pairs)
    own.rollout_log_probs = [pair[0] for pair in pairs]
    own.status = Sample.Status.COMPLETED
    own.rollout_id = sample.index
    return own


async def generate(args, sample: Sample, sampling_params) -> list[Sample]:
    params = {**sampling_params, "max_new_tokens": 4}
    solvers = await asyncio.gather(
        *(ask(args, sample, sample.prompt, {**params, "sampling_seed": number}) for number in range(SOLVERS))
    )
    for solver, reward in zip(solvers, await batched_async_rm(args, solvers), strict=True):
        solver.reward = reward
    judge = await ask(args, sample, "\n".join(solver.response for solver in solvers) or ".", params)
    judge.reward = max(solver.reward for solver in solvers)
    made = [*solvers, judge]
    random.shuffle(made)
    return made


async def reward(args, samples, **kwargs):
    return [float(len(sample.response)) for sample in samples]

"""Search-R1's loop: the model thinks, looks things up as often as it likes, and answers.

It searches by `<search>words</search>`, reads `<information>…</information>`, which is not trained on, and ends with
`<answer>…</answer>`. Names are slime's: the file runs there as it does here.
"""

from __future__ import annotations

import re
import time
from typing import Any

from slime.rollout.sglang_rollout import GenerateState
from slime.rollout.sglang_rollout import generate as ask_model
from slime.utils.http_utils import post
from slime.utils.types import Sample

ACTION = re.compile(r"<(search|answer)>((?:(?!<\1>).)*)</\1>\s*$", re.DOTALL)
"""What a turn ends with: the engine stops at either tag."""
STOP = ["</search>", "</answer>"]
HINT = "\n\nWrite <search>words</search> to look something up, or <answer>the answer</answer> to end.\n\n"


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """At most `search_max_turns` calls of the model, within the `max_new_tokens` of one response."""
    params = {**sampling_params, "stop": STOP}
    for turn in range(args.search_max_turns):
        sample.status = Sample.Status.PENDING
        sample = await ask_model(args, sample, params)
        if sample.status != Sample.Status.COMPLETED:
            return sample
        action = ACTION.search(sample.response)
        if action is not None and action[1] == "answer":
            return sample
        if turn + 1 < args.search_max_turns:
            started = time.monotonic()
            observation = HINT if action is None else await look_up(args, action[2].strip())
            sample.non_generation_time += time.monotonic() - started
            show(args, sample, observation, room=params["max_new_tokens"] - sample.response_length)
    sample.status = Sample.Status.TRUNCATED
    return sample


async def look_up(args: Any, words: str) -> str:
    """What Search-R1's retrieval server finds, in the form that the model reads."""
    answer = await post(args.search_url, {"queries": [words], "topk": args.search_topk, "return_scores": True})
    documents = []
    for number, found in enumerate(answer["result"][0], start=1):
        title, _, text = found["document"]["contents"].partition("\n")
        documents.append(f"Doc {number}(Title: {title}) {text}")
    return "\n\n<information>" + "\n".join(documents) + "</information>\n\n"


def show(args: Any, sample: Sample, text: str, *, room: int) -> None:
    """Let the model read a text, as much of it as there is room for."""
    ids = GenerateState(args).tokenizer(text, add_special_tokens=False)["input_ids"][: max(0, room)]
    sample.append_response_tokens(args, tokens=ids, trainable=False, text=text)

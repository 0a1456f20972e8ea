"""A generate function that does as a test says before it asks the engine: exits, sleeps, freezes, fills memory.

`$SLIME_STAGES_TEST_FAULTS/ITERATION-GROUP` holds one action a line, taken from the top, one a call.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import aiohttp

from slime_stages.sample import Sample

VARIABLE = "SLIME_STAGES_TEST_FAULTS"


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    iteration = str(sample.session_id).split("-")[-2]
    await act(take(f"{iteration}-{sample.group_index}"))
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    body = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        answer.raise_for_status()
        output = await answer.json()
    meta = output["meta_info"]
    tokens = [token for _, token, *_ in meta["output_token_logprobs"]]
    log_probs = [log_prob for log_prob, *_ in meta["output_token_logprobs"]]
    sample.append_response_tokens(args, tokens=tokens, log_probs=log_probs, meta_info=meta, text=output["text"])
    return sample


def reward(args: Any, sample: Sample) -> float:
    """1 if the sum of the token ids is odd; the other way about while there is a file `flip`."""
    is_flipped = Path(os.environ.get(VARIABLE, "/nowhere"), "flip").exists()
    return float(sum(sample.tokens) % 2 != is_flipped)


def plant(folder: Path, iteration: int, group: int, *actions: str) -> None:
    """Have these happen, one after the other, when the group's prompt is asked."""
    folder.mkdir(exist_ok=True)
    (folder / f"{iteration}-{group}").write_text("\n".join(actions))


def take(name: str) -> str:
    path = Path(os.environ.get(VARIABLE, "/nowhere")) / name
    if not path.exists():
        return ""
    action, _, rest = path.read_text().partition("\n")
    path.write_text(rest) if rest else path.unlink()
    return action


async def act(action: str) -> None:
    word, _, value = action.partition(" ")
    if word == "exit":
        os._exit(int(value))
    elif word == "sleep":
        await asyncio.sleep(float(value))
    elif word == "freeze":  # as code that does not yield, once other groups have had so many seconds
        await asyncio.sleep(float(value))
        time.sleep(600)
    elif word == "memory":
        hog = bytearray(int(value) << 20)
        hog[::4096] = b"x" * len(hog[::4096])
        await asyncio.sleep(60)

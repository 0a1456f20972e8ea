"""ReTool's loop: the model computes by writing Python, whose output it reads, and ends with `Answer: \\boxed{…}`.

A program is `<tool_call>{"name": "code_interpreter", "arguments": {"code": "…"}}</tool_call>`, or the same as
`<code>…</code>`; what it prints comes back as `<interpreter>…</interpreter>` and is not trained on.
"""

from __future__ import annotations

import json
import re
import time
from functools import cache
from typing import Any

from slime.rollout.sglang_rollout import GenerateState
from slime.rollout.sglang_rollout import generate as ask_model
from slime.utils.types import Sample

from slime_stages.agent.sandbox.open import Sandboxes
from slime_stages.agent.sandbox.protocol import OUT_OF_TIME
from slime_stages.agent.sandbox.settings import SandboxSettings

PROGRAM = re.compile(r"<(tool_call|code)>((?:(?!<\1>).)*)</\1>\s*$", re.DOTALL)
"""What a turn ends with, unless it is the last one: the engine stops at either tag."""
STOP = ["</tool_call>", "</code>"]
CALLS = "tool_calls"
"""In a sample's metadata: programs that it ran."""


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """The model's turns, within the `max_new_tokens` of one response; at most `retool_max_calls` programs are run."""
    params = {**sampling_params, "stop": STOP}
    sample.metadata = {**sample.metadata, CALLS: sample.metadata.get(CALLS, 0)}
    while True:
        sample.status = Sample.Status.PENDING
        sample = await ask_model(args, sample, params)
        found = PROGRAM.search(sample.response)
        if found is None or sample.status != Sample.Status.COMPLETED:
            return sample
        if sample.metadata[CALLS] >= args.retool_max_calls:
            sample.status = Sample.Status.TRUNCATED
            return sample
        started = time.monotonic()
        output = await run(args, *found.groups())
        sample.non_generation_time += time.monotonic() - started
        sample.metadata[CALLS] += 1
        show(args, sample, output, room=params["max_new_tokens"] - sample.response_length)


async def run(args: Any, tag: str, text: str) -> str:
    """What the model's program prints, or why it cannot be run."""
    try:
        code = str(json.loads(text)["arguments"]["code"]) if tag == "tool_call" else text
    except (ValueError, KeyError, TypeError) as error:
        return f"no program: {type(error).__name__}: {error}"
    async with sandboxes(args.retool_programs, args.retool_memory_gb).open() as sandbox:
        done = await sandbox.exec(["python3", "-I", "-c", code], timeout=args.retool_seconds)
    if done.code == OUT_OF_TIME:
        return f"{done.stdout}\nended after {args.retool_seconds} s"
    return done.stdout if done.code == 0 else f"{done.stdout}\n{done.stderr}"


@cache
def sandboxes(count: int, memory_gb: float) -> Sandboxes:
    """Places for programs: each sees neither the network nor a file of anybody's."""
    settings = SandboxSettings(memory_bytes=int(memory_gb * (1 << 30)), disk_bytes=64 << 20, output_bytes=64 << 10)
    return Sandboxes("local", settings, count)


def show(args: Any, sample: Sample, output: str, *, room: int) -> None:
    """Let the model read an output, as much of it as there is room for."""
    text = f"\n\n<interpreter>\n{output.strip()}\n</interpreter>\n\n"
    ids = GenerateState(args).tokenizer(text, add_special_tokens=False)["input_ids"][: max(0, room)]
    sample.append_response_tokens(args, tokens=ids, trainable=False, text=text)

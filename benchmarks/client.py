"""What the rollout stage costs beside the engine: its tokens per second and those of a bare client, on one server.

    python -m benchmarks.client --prompts 16 --samples 8 --tokens 384

A real SGLang server of a model; without `--model`, of a tiny random one, which answers so fast that a client's own work
shows. In turn, the stage makes a shard (asks, checks, journals every group, writes and commits), and aiohttp sends the
very same requests with nothing around them. Seconds of the stage are those of its whole call, the look for the engine
left out. The engine's cache is emptied before each, and with an engine on a CPU both must get the same tokens. The
median of the rounds' ratios counts: other work on the machine disturbs both sides of a round alike.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from slime_stages.config import resolve
from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import start_run
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from slime_stages.serving.launch import has_accelerator
from slime_stages.stage import StageCall
from stages.rollout.run import run as run_rollout
from tests.fixtures.tiny_model import make_tiny_model, make_tiny_prompts

CONFIG = """
[model]
hf_checkpoint = "{model}"
[data]
prompt_data = ["{prompts}"]
input_key = "prompt"
label_key = "label"
apply_chat_template = true
[rollout]
rollout_batch_size = {options.prompts}
n_samples_per_prompt = {options.samples}
rollout_max_response_len = {options.tokens}
[serving]
sglang_server_concurrency = {options.concurrency}
rollout_external_engine_addrs = ["{address}"]
[reward]
rm_type = "math"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one client did in one round."""

    responses: list[list[int]]
    """Token ids, by sample."""
    seconds: float
    processor_seconds: float
    """Of this process alone: the client's own work."""

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.responses)) / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; a tiny random model without it")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=384, help="of a response, at most")
    parser.add_argument("--concurrency", type=int, default=512, help="requests at a time")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options)


def compare(folder: Path, options: argparse.Namespace) -> None:
    model = options.model or make_tiny_model(folder / "model")
    prompts = make_tiny_prompts(folder / "prompts.jsonl", options.prompts)
    gc.collect()
    gc.freeze()  # a rollout's process has no such model and libraries in it to look through, again and again
    with Engine(model, "0", log=folder / "engine.log") as engine:
        run = new_run(folder, options, model=model, prompts=prompts, address=engine.url.removeprefix("http://"))
        by_stage(run)  # warms up the engine, and says what to send
        requests = [request_of(sample) for sample in samples_of(run)]
        report([one_round(run, engine, requests, options, number) for number in range(options.rounds)])
    gc.unfreeze()


def new_run(folder: Path, options: argparse.Namespace, **names: Any) -> RunDir:
    config, run = folder / "config.toml", RunDir(folder / "run")
    config.write_text(CONFIG.format(options=options, **names))
    start_run(run, resolve(config, {}).config)
    ensure_plan(run, 0)
    return run


def one_round(
    run: RunDir, engine: Engine, requests: list[dict[str, Any]], options: argparse.Namespace, number: int
) -> tuple[Side, Side]:
    """(the stage, the bare client), each the first one in every other round."""
    sides: dict[str, Side] = {}
    for name in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
        engine.flush_cache()
        sides[name] = by_stage(run) if name == "ours" else by_bare_client(engine.url, requests, options.concurrency)
    ours, bare = sides["ours"], sides["bare"]
    assert ours.responses == bare.responses or has_accelerator(), "the two clients got other tokens"
    return ours, bare


def by_stage(run: RunDir) -> Side:
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0, force=True)
    started, worked = time.perf_counter(), time.process_time()
    with run.root.with_suffix(".log").open("a") as log, redirect_stderr(log):
        manifest = read_manifest(run_rollout(call))
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - worked
    return Side(
        responses=[sample.tokens[sample.prompt_length :] for sample in samples_of(run)],
        seconds=seconds - manifest.seconds["engine"],
        processor_seconds=processor_seconds,
    )


def by_bare_client(url: str, requests: list[dict[str, Any]], concurrency: int) -> Side:
    started, worked = time.perf_counter(), time.process_time()
    answers = asyncio.run(send(url, requests, concurrency))
    return Side(
        responses=[[token for _, token, *_ in answer["meta_info"]["output_token_logprobs"]] for answer in answers],
        seconds=time.perf_counter() - started,
        processor_seconds=time.process_time() - worked,
    )


async def send(url: str, requests: list[dict[str, Any]], concurrency: int) -> list[dict[str, Any]]:
    connections = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connections, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def ask(request: dict[str, Any]) -> dict[str, Any]:
            async with session.post(f"{url}/generate", json=request) as response:
                response.raise_for_status()
                return dict(await response.json())

        return list(await asyncio.gather(*map(ask, requests)))


def samples_of(run: RunDir) -> list[Sample]:
    return read_samples(run.shard_path("rollout", 0, 0, 1))


def request_of(sample: Sample) -> dict[str, Any]:
    """As the stage has sent it."""
    prompt = sample.tokens[: sample.prompt_length]
    return {"input_ids": prompt, "sampling_params": sample.sampling_params, "return_logprob": True}


def report(rounds: Sequence[tuple[Side, Side]]) -> None:
    requests, tokens = len(rounds[0][0].responses), sum(map(len, rounds[0][0].responses))
    print(f"{requests:,} requests, {tokens:,} response tokens; median of {len(rounds)} rounds")
    for name, sides in zip(("rollout stage", "bare client"), zip(*rounds, strict=True), strict=True):
        speed = statistics.median(side.tokens_per_second for side in sides)
        work = statistics.median(side.processor_seconds for side in sides) / requests
        print(f"{name:<14}{speed:>9,.0f} tokens/s   {work * 1e3:.2f} ms of its own processor time a request")
    ratios = sorted(ours.tokens_per_second / bare.tokens_per_second for ours, bare in rounds)
    print(f"the stage has {statistics.median(ratios):.3f} of the bare client's tokens per second", end="")
    print(f" ({', '.join(f'{ratio:.3f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()

"""Iterations an hour where some responses take far longer than most: waiting for all, for most, or streaming.

    python -m benchmarks.long_tail --iterations 8

The engine is a sleep: a sample takes median × e^(sigma × N(0, 1)) seconds, the same for a sample in every row, and at
most `prompts × samples` of them run at a time. Training is a sleep of fixed length. Plans, rollout stage, hand-overs,
journals and commits are the real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import start_run
from slime_stages.run.manifest import Manifest, commit_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, StageCall
from slime_stages.weights.publish import publish_link
from stages.rollout.inputs import wait_for_inputs
from stages.rollout.live_engines import LiveEngines
from stages.rollout.run import run as run_rollout
from tests.fixtures.tiny_model import make_tiny_model, make_tiny_prompts
from tests.slime_stages.config.settings import resolved

MODES: dict[str, dict[str, Any]] = {
    "synchronous": {"staleness": 0},
    "one iteration ahead": {"staleness": 1},
    "quorum 75 %, carry-over": {"staleness": 1, "rollout_quorum": 0.75},
    "streaming": {"staleness": 1, "rollout_streaming": True},
}
POLL_SECONDS = 0.05
SECONDS = {"median": 0.2, "sigma": 1.2}


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Eight tokens after a time that depends on the sample alone."""
    normal = random.Random(sample.index).gauss(0.0, 1.0)
    await asyncio.sleep(SECONDS["median"] * math.exp(SECONDS["sigma"] * normal))
    sample.append_response_tokens(None, tokens=[5] * 8, log_probs=[-1.0] * 8, text="x" * 8)
    sample.status = Status.COMPLETED
    return sample


@contextmanager
def no_engine(stage: Stage) -> Iterator[Served]:
    yield Served(urls=("http://127.0.0.1:9",), engine_count=1)


@contextmanager
def no_live_engine(stage: Stage) -> Iterator[LiveEngines]:
    with no_engine(stage) as served:
        yield LiveEngines(served=served, handles=())


def main() -> None:
    parser = argparse.ArgumentParser(description="iterations an hour with long-tailed responses")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=16, help="of an iteration")
    parser.add_argument("--samples", type=int, default=4, help="of a prompt")
    parser.add_argument("--train-seconds", type=float, default=0.5)
    parser.add_argument("--median", type=float, default=SECONDS["median"], help="seconds of a sample")
    parser.add_argument("--sigma", type=float, default=SECONDS["sigma"], help="of the logarithm of these seconds")
    args = parser.parse_args()
    SECONDS.update(median=args.median, sigma=args.sigma)
    logging.disable(logging.WARNING)
    engines = patch("stages.rollout.run.ready_engines", no_engine)
    live_engines = patch("stages.rollout.stream.live_engines", no_live_engine)
    with engines, live_engines, tempfile.TemporaryDirectory(prefix="long-tail-") as name:
        folder = Path(name)
        model, prompts = make_tiny_model(folder / "model"), make_tiny_prompts(folder / "prompts.jsonl", 64)
        rates = {
            title: measure(folder / str(number), model, prompts, settings, args)
            for number, (title, settings) in enumerate(MODES.items())
        }
    print(f"{args.iterations} iterations of {args.prompts} prompts × {args.samples} samples; a sample takes ", end="")
    print(f"{args.median} s × e^({args.sigma} × N(0, 1)), training {args.train_seconds} s\n")
    print(f"{'':26} {'iterations an hour':>20} {'to synchronous':>16}")
    for title, rate in rates.items():
        print(f"{title:26} {rate:20.0f} {rate / rates['synchronous']:15.1f}x")


def measure(folder: Path, model: Path, prompts: Path, settings: dict[str, Any], args: argparse.Namespace) -> float:
    """Iterations an hour of a run with these settings, from its first prompt to its last training."""
    config = resolved(
        hf_checkpoint=str(model),
        prompt_data=[str(prompts)],
        input_key="prompt",
        apply_chat_template=True,
        rollout_batch_size=args.prompts,
        n_samples_per_prompt=args.samples,
        sglang_server_concurrency=args.prompts * args.samples,
        custom_generate_function_path="benchmarks.long_tail.generate",
        use_tis=True,
        **settings,
    ).config
    run = RunDir(folder)
    start_run(run, config)
    for iteration in range(args.iterations):
        ensure_plan(run, iteration)
    streams = config.rollout.rollout_streaming
    generating = threading.Thread(target=roll_out, args=(run, args.iterations, streams), daemon=True)
    began = time.monotonic()
    generating.start()
    for iteration in range(args.iterations):
        while not run.manifest_path("rollout", iteration, 0, 1).exists():
            if not generating.is_alive():
                sys.exit(f"the rollouts ended before iteration {iteration}")
            time.sleep(POLL_SECONDS)
        train(run, model, iteration, args.train_seconds)
    seconds = time.monotonic() - began
    generating.join()
    return 3600.0 * int(args.iterations) / seconds


def roll_out(run: RunDir, iterations: int, streams: bool) -> None:
    """All rollouts, by one process: as calls one after the other, or as one stream."""
    if streams:
        run_rollout(StageCall(stage="rollout", run=run.root, iteration=0, shard=0, until=iterations))
        return
    for iteration in range(iterations):
        call = StageCall(stage="rollout", run=run.root, iteration=iteration, shard=0)
        asyncio.run(wait_for_inputs(call, 3600.0))
        run_rollout(call)


def train(run: RunDir, model: Path, iteration: int, seconds: float) -> None:
    """As long as training takes, and then the next weights, as sync publishes them."""
    time.sleep(seconds)
    publish_link(model, run.weights_path(iteration + 1))
    manifest = Manifest(kind="sync", run_id=run.run_id(), iteration=iteration, content=f"weights {iteration}")
    path = run.manifest_path("sync", iteration)
    path.parent.mkdir(parents=True)
    commit_manifest(manifest, path)


if __name__ == "__main__":
    main()

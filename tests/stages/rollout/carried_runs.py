"""Runs whose rollouts hand over groups: answers are made up, all else is as in earnest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import start_run
from slime_stages.run.announce import told_on_the_way
from slime_stages.run.manifest import Manifest, commit_manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, StageCall
from slime_stages.weights.publish import publish_link
from stages.rollout.generate import Requests
from stages.rollout.live_engines import LiveEngines
from stages.rollout.run import run as run_rollout
from tests.slime_stages.config.settings import resolved

HERE = "tests.stages.rollout.carried_runs"
TOKENS = 6


@dataclass
class Behaviour:
    """What the made-up generate and reward functions do."""

    seconds: dict[int, float] = field(default_factory=dict)
    """By prompt position; others are answered at once."""
    rewards: dict[int, float] = field(default_factory=dict)
    """One for all samples of a position; others differ."""
    asked: list[tuple[int, int]] = field(default_factory=list)
    """(index, tokens it went on from) of each sample asked."""

    requests: list[Requests] = field(default_factory=list)
    """Of each call that asked, by which an engine would hear that it is to end."""

    @property
    def positions(self) -> list[int]:
        return sorted({index // 2 for index, _ in self.asked})


behaviour = Behaviour()


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Six tokens; a slow one has three before it waits."""
    index = sample.index or 0
    behaviour.asked.append((index, sample.response_length))
    if seconds := behaviour.seconds.get(index // 2):
        if sample.response_length == 0:
            _append(sample, TOKENS // 2, Status.ABORTED)
        await asyncio.sleep(seconds)
    _append(sample, TOKENS - sample.response_length, Status.COMPLETED)
    return sample


async def cut_short(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """A slow one answers when it is cut short, as an engine does, with the tokens that it has."""
    if not behaviour.seconds.get((sample.index or 0) // 2) or sample.response_length:
        return await generate(args, sample, sampling_params)
    behaviour.asked.append((sample.index or 0, 0))
    while not behaviour.requests[-1].is_ending:
        await asyncio.sleep(0.05)
    _append(sample, TOKENS // 2, Status.ABORTED)
    return sample


def reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Given with the prompt position, since another process scores."""
    same = sample.metadata.get("same_reward")
    return float((sample.index or 0) % 2) if same is None else float(same)


def tell_reward(args: Any, sample: Sample) -> None:
    """A sample hook: what the reward function is to say."""
    if (same := behaviour.rewards.get((sample.index or 0) // 2)) is not None:
        sample.metadata = {**sample.metadata, "same_reward": same}


def _append(sample: Sample, count: int, status: Status) -> None:
    sample.append_response_tokens(None, tokens=[5] * count, log_probs=[-1.0] * count, text="x" * count)
    sample.status = status
    sample.weight_versions = [*sample.weight_versions, "w"]


@dataclass(frozen=True)
class CarriedRun:
    """A run of 4 prompts × 2 samples an iteration."""

    run: RunDir
    model: Path

    def roll(self, iteration: int, shard: int = 0, *, force: bool = False) -> Manifest:
        ensure_plan(self.run, iteration)
        call = StageCall(stage="rollout", run=self.run.root, iteration=iteration, shard=shard, force=force)
        return read_manifest(run_rollout(call))

    def stream(self, iteration: int, until: int, shard: int = 0) -> Path:
        """One process for the shard of several iterations; each is trained, in no time, once it is committed."""
        for number in range(iteration, until):
            ensure_plan(self.run, number)
            if self.run.manifest_path("rollout", number, shard, 1).exists():
                self.end_iteration(number)
        call = StageCall(stage="rollout", run=self.run.root, iteration=iteration, shard=shard, until=until)

        def trained(manifest: Path | None) -> None:
            if manifest is not None:
                self.end_iteration(read_manifest(manifest).iteration)

        with told_on_the_way(trained):
            return run_rollout(call)

    def end_iteration(self, iteration: int) -> None:
        """As sync does: the next weights are there."""
        path = self.run.manifest_path("sync", iteration)
        if path.exists():
            return
        publish_link(self.model, self.run.weights_path(iteration + 1))
        manifest = Manifest(kind="sync", run_id=self.run.run_id(), iteration=iteration, content=f"weights {iteration}")
        path.parent.mkdir(parents=True)
        commit_manifest(manifest, path)

    def samples(self, iteration: int, shard: int = 0, *, stage: str = "rollout", shards: int = 1) -> list[Sample]:
        return read_samples(self.run.shard_path(stage, iteration, shard, shards))

    def positions(self, iteration: int, shard: int = 0, *, stage: str = "rollout", shards: int = 1) -> list[int]:
        found = self.samples(iteration, shard, stage=stage, shards=shards)
        return sorted({sample.group_index or 0 for sample in found})


def account(manifest: Manifest) -> tuple[int, int, int, int, int]:
    counts = manifest.counts
    return counts["issued"], counts["taken"], counts["kept"], counts["dropped"], counts["carried"]


Start = Callable[..., "CarriedRun"]


def start_carried(
    folder: Path, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> CarriedRun:
    behaviour.__init__()  # type: ignore[misc]
    config = resolved(
        **{
            "hf_checkpoint": str(model),
            "prompt_data": [str(prompts)],
            "input_key": "prompt",
            "apply_chat_template": True,
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 2,
            "rollout_max_response_len": TOKENS,
            "custom_generate_function_path": f"{HERE}.generate",
            "rollout_sample_hook_path": [f"{HERE}.tell_reward"],
            "custom_rm_path": f"{HERE}.reward",
            "reward_workers": 1,
            **settings,
        }
    ).config
    run = RunDir(folder)
    start_run(run, config)

    @contextmanager
    def no_engine(stage: Stage) -> Iterator[Served]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield Served(urls=(f"http://127.0.0.1:{server.getsockname()[1]}",), engine_count=1)

    @contextmanager
    def no_live_engine(stage: Stage) -> Iterator[LiveEngines]:
        with no_engine(stage) as served:
            yield LiveEngines(served=served, handles=())

    def heard() -> Requests:
        behaviour.requests.append(Requests())
        return behaviour.requests[-1]

    monkeypatch.setattr("stages.rollout.run.ready_engines", no_engine)
    monkeypatch.setattr("stages.rollout.stream.live_engines", no_live_engine)
    monkeypatch.setattr("stages.rollout.inputs.POLL_SECONDS", 0.05)
    monkeypatch.setattr("stages.rollout.ask.Requests", heard)
    monkeypatch.setattr("stages.rollout.admission.GRACE_SECONDS", 1.5)
    return CarriedRun(run, model)

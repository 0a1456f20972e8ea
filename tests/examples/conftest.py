"""Examples in the real stages, before a real engine: their own config, with a tiny model and few samples."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slime_stages.config import resolve
from slime_stages.data.sample_table import read_samples
from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import start_run
from slime_stages.lineage import shard_manifest_path
from slime_stages.plugins import load_function
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from stages.reward import run as reward
from stages.rollout import run as rollout
from tests.e2e.runs import at_version_0

ROOT = Path(__file__).parent.parent.parent
TURN = 4
"""Tokens that the model writes in a turn."""
Ask = Callable[[Any, Sample, dict[str, Any]], Awaitable[Sample]]


@dataclass(frozen=True)
class Example:
    """A run of an example: one prompt, two samples."""

    run: RunDir

    def roll(self) -> list[Sample]:
        plan = ensure_plan(self.run, 0)
        path = rollout.run(StageCall(stage="rollout", run=self.run.root, iteration=0, shard=0))
        assert path == shard_manifest_path(self.run, plan, "rollout", 0)
        return read_samples(path.with_suffix(".parquet"))

    def score(self) -> list[dict[str, Any]]:
        path = reward.run(StageCall(stage="reward", run=self.run.root, iteration=0, shard=0))
        return read_shard(path.with_suffix(".parquet"), REWARD).to_pylist()


@pytest.fixture
def begin(
    tmp_path: Path, tiny_model: Path, tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Example]:
    """Starts a run of the config of an example, with prompt data and settings over its own."""
    monkeypatch.chdir(ROOT)

    def start(config: str, prompts: Path, custom: str = "", **settings: Any) -> Example:
        engine = at_version_0(tiny_engine)
        own = {
            "hf_checkpoint": str(tiny_model),
            "prompt_data": [str(prompts)],
            "rollout_external_engine_addrs": [engine.url.removeprefix("http://")],
            "rollout_batch_size": 1,
            "n_samples_per_prompt": 2,
            "rollout_shards": 1,
            "global_batch_size": 2,
            "reward_workers": 1,
        }
        if custom:
            (tmp_path / "custom.yaml").write_text(custom)
            own["custom_config_path"] = str(tmp_path / "custom.yaml")
        run = RunDir(tmp_path / "run")
        start_run(run, resolve(ROOT / config, {**own, **settings}).config)
        return Example(run)

    return start


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the model of an example say given texts: its tokens are its own, what they are read as is not."""

    def script(module: str, text_of: Callable[[Sample], str]) -> None:
        load_function(f"{module}.generate")  # so that slime's names are found
        ask: Ask = load_function(f"{module}.ask_model")

        async def scripted(args: Any, sample: Sample, params: dict[str, Any]) -> Sample:
            before, room = sample.response, min(params["max_new_tokens"], sample.response_length + TURN)
            sample = await ask(args, sample, {**params, "stop": None, "max_new_tokens": room, "ignore_eos": True})
            if sample.response_length < params["max_new_tokens"]:
                sample.response, sample.status = before, Status.COMPLETED
                sample.response += text_of(sample)
            return sample

        monkeypatch.setattr(f"{module}.ask_model", scripted)

    return script


def read_text(sample: Sample, model: Path) -> str:
    """What the sample holds besides what the model wrote, from its tokens."""
    from slime_stages.data.decoding import load_decoder

    assert sample.loss_mask is not None
    response = sample.tokens[-sample.response_length :]
    return load_decoder(model)([token for token, own in zip(response, sample.loss_mask, strict=True) if not own])

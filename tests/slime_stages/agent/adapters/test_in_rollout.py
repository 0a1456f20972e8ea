"""An agent behind an adapter as a run's generate function: its sessions become the shard's samples."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import openai

from slime_stages.agent.adapters import OpenAIAdapter, run_app_in_thread
from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.lineage import shard_manifest_path
from slime_stages.prompts.tokenizer import load_tokenizer
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from slime_stages.serving.models import get_model_url
from slime_stages.stage import StageCall
from stages.rollout import run as rollout
from tests.e2e.runs import at_version_0, new_run

_lock = threading.Lock()
_running: dict[str, Any] = {}


def adapter_of(args: Any) -> tuple[OpenAIAdapter, str]:
    """One for the process."""
    with _lock:
        if not _running:
            tokenizer = load_tokenizer(Path(args.hf_checkpoint))
            adapter = OpenAIAdapter(tokenizer, get_model_url(args, "actor", ""))
            _running.update(adapter=adapter, app=run_app_in_thread(adapter.app))
    return _running["adapter"], _running["app"].url


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    """An agent that asks twice, and starts anew once."""
    adapter, url = adapter_of(args)
    sid = uuid.uuid4().hex
    adapter.open_session(sid, sampling_defaults=sampling_params, max_context_tokens=400)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=sid) as client:
        history: list[Any] = [{"role": "user", "content": str(sample.label)}]
        for _ in range(2):
            completion = await client.chat.completions.create(model="m", messages=history)
            content = completion.choices[0].message.content
            history = [*history, {"role": "assistant", "content": content}, {"role": "user", "content": "Sure?"}]
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "In short?"}])
    return await adapter.finish_session(sid, base_sample=sample, reward=1.0, split_reward=True)


def test_the_segments_of_each_session_are_the_samples_of_one_execution(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path, tiny_engine: Engine
) -> None:
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=at_version_0(tiny_engine),
        rollout_shards=1,
        rollout_batch_size=2,
        custom_generate_function_path="tests.slime_stages.agent.adapters.test_in_rollout.generate",
    )
    plan = ensure_plan(run, 0)
    try:
        rollout.run(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))
    finally:
        if _running:
            _running.pop("app").stop()
            _running.clear()

    samples = read_samples(shard_manifest_path(run, plan, "rollout", 0).with_suffix(".parquet"))
    by_execution: dict[Any, list[Sample]] = {}
    for sample in samples:
        by_execution.setdefault(sample.rollout_id, []).append(sample)
    assert sorted(by_execution) == [0, 1, 2, 3]
    for rollout_id, siblings in by_execution.items():
        assert {sample.index for sample in siblings} == {rollout_id}
        assert sum(sample.reward for sample in siblings) == 1.0  # type: ignore[misc]
        kinds = [sample.metadata["segment"] for sample in siblings]
        assert kinds[-1] == "final"
        assert set(kinds[:-1]) == {"wipe"}
        assert all(sample.weight_versions and sample.response_length for sample in siblings)

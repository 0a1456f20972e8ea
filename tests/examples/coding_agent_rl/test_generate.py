"""The example's generate function: with a model that knows the answer, and in real stages with one that knows none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from examples.coding_agent_rl.generate import generate
from examples.coding_agent_rl.prepare import tasks
from slime_stages.data.sample_table import read_samples
from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.launch.plans import ensure_plan
from slime_stages.lineage import shard_manifest_path
from slime_stages.sample import Sample, Status
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from stages.reward import run as reward
from stages.rollout import run as rollout
from tests.e2e.runs import at_version_0, new_run
from tests.fixtures.tiny_model import make_tokenizer
from tests.slime_stages.agent.adapters.scripted_engine import ScriptedEngine, serving
from tests.slime_stages.agent.harness.scripted_model import call

MENDED = [
    call("edit", path="lists.py", old="//", new="/"),
    call("bash", command="python3 -c 'import lists; print(lists.mean([1, 2]))'"),
    "It is mended.",
]


async def solve(
    script: list[str], tiny_model: Path, metadata: dict[str, Any], evaluation: bool = False, **settings: Any
) -> list[Sample]:
    """What becomes of a sample when the model says `script`."""
    with serving(ScriptedEngine(make_tokenizer(), script)) as engine:
        router = urlsplit(engine.url)
        args = SimpleNamespace(
            hf_checkpoint=str(tiny_model),
            sglang_router_ip=router.hostname,
            sglang_router_port=router.port,
            sglang_tool_call_parser="qwen25",
            sglang_reasoning_parser=None,
            rollout_max_context_len=None,
            **settings,
        )
        sample = Sample(index=3, group_index=1, prompt="p", metadata=metadata)
        return await generate(args, sample, {"temperature": 1.0, "max_new_tokens": 512}, evaluation)


@pytest.fixture
def metadata() -> dict[str, Any]:
    return dict(next(tasks())["metadata"])


async def test_an_agent_that_mends_the_code_is_worth_1(
    tiny_model: Path, tmp_path: Path, metadata: dict[str, Any]
) -> None:
    [sample] = await solve(MENDED, tiny_model, metadata, swe_log_folder=str(tmp_path))

    assert (sample.reward, sample.status, sample.index, sample.group_index) == (1.0, Status.COMPLETED, 3, 1)
    assert sample.metadata["grading_solved"] is True
    assert sample.metadata["agent_exit_code"] == 0
    assert sample.metadata["instance_id"] == "lists-mean"
    assert "+    return sum(values) / len(values)" in sample.metadata["diff"]
    assert sample.loss_mask is not None
    assert 0 < sum(sample.loss_mask) < sample.response_length
    commands = [json.loads(line)["command"] for line in (tmp_path / "3.jsonl").read_text().splitlines()]
    assert any("lists.mean([1, 2])" in command for command in commands)


async def test_an_agent_that_mends_nothing_is_worth_0(tiny_model: Path, metadata: dict[str, Any]) -> None:
    [sample] = await solve(["I give up."], tiny_model, metadata, evaluation=True)

    assert (sample.reward, sample.metadata["diff"]) == (0.0, "")


async def test_what_the_machine_spoils_has_no_reward_and_says_why(tiny_model: Path, metadata: dict[str, Any]) -> None:
    [broken] = await solve([], tiny_model, {**metadata, "pre_commands": "exit 9"})
    [late] = await solve([], tiny_model, {**metadata, "pre_commands": "sleep 9"}, swe_rollout_guard_sec=1.5)
    [ungraded] = await solve([], tiny_model, {"workdir": "/workspace"})

    for sample in (broken, late, ungraded):
        assert (sample.status, sample.reward, sample.remove_sample) == (Status.FAILED, None, True)
    assert "ended with 9" in broken.metadata["abort_reason"]
    assert late.metadata["abort_reason"] == "not done within 1.5 s"
    assert "a task without `eval_cmd`" in ungraded.metadata["abort_reason"]


async def test_an_agent_is_stopped_when_the_rollout_ends(tiny_model: Path, metadata: dict[str, Any]) -> None:
    with pytest.raises(InterruptedError, match="the rollout is ending"):
        await solve([], tiny_model, {**metadata, "pre_commands": "sleep 9"}, is_ending=lambda: True)


def test_a_shard_of_agents_is_rolled_out_and_scored(tiny_model: Path, tiny_engine: Engine, tmp_path: Path) -> None:
    prompts, settings = tmp_path / "tasks.jsonl", tmp_path / "agent.yaml"
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in list(tasks())[:2]))
    settings.write_text("swe_agent_time_budget_sec: 60\nswe_turn_limit: 2\n")
    run = new_run(
        tmp_path / "run",
        tiny_model,
        prompts,
        engine=at_version_0(tiny_engine),
        custom_generate_function_path="examples.coding_agent_rl.generate.generate",
        custom_config_path=str(settings),
        custom_rm_path=None,
        apply_chat_template=False,
        rollout_shards=1,
        rollout_batch_size=2,
        rollout_max_response_len=8,
    )
    plan = ensure_plan(run, 0)

    rollout.run(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))
    reward.run(StageCall(stage="reward", run=run.root, iteration=0, shard=0))

    samples = read_samples(shard_manifest_path(run, plan, "rollout", 0).with_suffix(".parquet"))
    rows = read_shard(shard_manifest_path(run, plan, "reward", 0).with_suffix(".parquet"), REWARD).to_pylist()
    assert sorted(sample.metadata["instance_id"] for sample in samples) == ["lists-last"] * 2 + ["lists-mean"] * 2
    assert [(row["reward"], row["reward_status"]) for row in rows] == [(0.0, "given")] * 4
    for sample in samples:
        assert sample.metadata["agent_exit_code"] == 0  # the random model calls no tool
        assert sample.loss_mask == [1] * sample.response_length
        assert sample.rollout_log_probs is not None
        assert len(sample.rollout_log_probs) == sample.response_length <= 8
        assert sample.weight_versions == ["0"]

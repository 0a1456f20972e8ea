"""Asking for groups: prompts and seeds are computed, plug-ins are called as slime calls them, errors are recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import UsageError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import start_run
from slime_stages.prompts.table import read_prompt_table
from slime_stages.run.journal import Journal
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, StageCall, read_config
from stages.rollout.ask import Generation
from stages.rollout.new_group import new_group
from stages.rollout.shard_work import by_prompt, work_of
from tests.slime_stages.config.settings import resolved


async def two_siblings(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    other = Sample.from_dict(sample.to_dict())
    return [answered(sample, "x"), answered(other, "y")]


def sometimes_broken(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = True) -> Sample:
    if sample.index == 1:
        raise ValueError("no tool today")
    return answered(sample, f"{evaluation} {sampling_params['max_new_tokens']}")


def no_sample(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> str:
    return "text"


def nothing(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    return []


def two_executions(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    return [Sample(rollout_id=1, status=Status.COMPLETED), Sample(rollout_id=2, status=Status.COMPLETED)]


async def mixed(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample | list[Sample]:
    return await two_siblings(args, sample, sampling_params) if (sample.index or 0) % 2 else answered(sample, "z")


async def shouting(args: Any, sample: Sample, rollout_id: int | None = None) -> None:
    sample.response = f"{sample.response.upper()}@{rollout_id}"


def answered(sample: Sample, text: str) -> Sample:
    sample.append_response_tokens(None, tokens=[5], log_probs=[-1.0], text=text)
    sample.status = Status.COMPLETED
    return sample


@pytest.fixture
def stage(tiny_model: Path, tiny_prompts: Path, tmp_path: Path) -> Stage:
    """The first rollout call of a run of 2 prompts × 2 samples."""
    config = resolved(
        hf_checkpoint=str(tiny_model),
        prompt_data=[str(tiny_prompts)],
        input_key="prompt",
        label_key="label",
        apply_chat_template=True,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        rollout_max_response_len=4,
        rollout_sample_hook_path=["tests.stages.rollout.test_ask.shouting"],
    ).config
    run = RunDir(tmp_path / "run")
    start_run(run, config)
    plan = ensure_plan(run, 0)
    return Stage(
        call=StageCall(stage="rollout", run=run.root, iteration=0, shard=0),
        run=run,
        plan=plan,
        config=read_config(run, 0),
        manifest_path=run.manifest_path("rollout", 0, 0, 1),
        inputs={},
        config_digest="",
    )


def groups_of(stage: Stage) -> list[list[Sample]]:
    prompts = read_prompt_table(stage.run.prompts_path())
    return [new_group(stage.plan, stage.config, prompts, position) for position in (0, 1)]


def finish(stage: Stage, generate: Any) -> tuple[list[list[Sample]], list[list[Sample]]]:
    """The groups as kept, and as recorded."""
    folder = stage.run.journal_path(0, 0)
    with Journal(folder, iteration=0, shard=0, fingerprint="") as journal:
        work = work_of(stage, journal, read_prompt_table(stage.run.prompts_path()))
        served = Served(urls=("http://127.0.0.1:9",), engine_count=1)
        asyncio.run(Generation(stage=stage, served=served, generate=generate).finish(work))
    return by_prompt(work.selection.kept), journal.finished_groups()


def test_a_group_is_a_pure_function_of_the_plan(stage: Stage) -> None:
    first, again = groups_of(stage), groups_of(stage)

    assert first == again
    assert [[sample.index for sample in group] for group in first] == [[0, 1], [2, 3]]
    assert [group[0].group_index for group in first] == [0, 1]
    seeds = [sample.sampling_params["sampling_seed"] for group in first for sample in group if sample.sampling_params]
    assert len(set(seeds)) == 4
    assert first[0][0].prompt != first[1][0].prompt
    assert first[0][0].tokens == first[0][1].tokens != []


def test_fan_out_siblings_share_a_rollout_id_and_hooks_see_each_of_them(stage: Stage) -> None:
    groups, recorded = finish(stage, two_siblings)

    assert [[(s.rollout_id, s.response) for s in group] for group in groups] == [
        [(0, "X@0"), (0, "Y@0"), (1, "X@0"), (1, "Y@0")],
        [(2, "X@0"), (2, "Y@0"), (3, "X@0"), (3, "Y@0")],
    ]
    assert sorted(group[0].group_index or 0 for group in recorded) == [0, 1]


def test_a_plug_in_that_raises_fails_its_sample_alone_and_the_reason_is_recorded(stage: Stage) -> None:
    groups, _ = finish(stage, sometimes_broken)

    statuses = [[sample.status for sample in group] for group in groups]
    assert statuses == [[Status.COMPLETED, Status.FAILED], [Status.COMPLETED, Status.COMPLETED]]
    assert groups[0][1].metadata["error"] == "ValueError: no tool today"
    assert groups[0][1].remove_sample
    assert groups[1][0].response == "FALSE 4@0"


def test_a_plug_in_that_returns_no_sample_is_a_usage_error(stage: Stage) -> None:
    with pytest.raises(UsageError, match="the generate function returned str"):
        finish(stage, no_sample)


def test_a_plug_in_that_returns_an_empty_list_leaves_a_sample_that_is_not_trained_on(stage: Stage) -> None:
    groups, _ = finish(stage, nothing)

    assert [[(s.status, s.remove_sample, s.rollout_id) for s in group] for group in groups] == [
        [(Status.FAILED, True, 0), (Status.FAILED, True, 1)],
        [(Status.FAILED, True, 2), (Status.FAILED, True, 3)],
    ]
    assert groups[0][0].metadata["error"] == "the generate function returned no sample"


def test_siblings_with_ids_of_different_executions_are_a_usage_error(stage: Stage) -> None:
    with pytest.raises(UsageError, match=r"samples of one execution with different ids: \['1', '2'\]"):
        finish(stage, two_executions)


def test_attempts_may_return_a_sample_and_others_a_list(stage: Stage) -> None:
    groups, _ = finish(stage, mixed)

    assert [[(s.index, s.rollout_id) for s in group] for group in groups] == [
        [(0, None), (1, 1), (1, 1)],
        [(2, None), (3, 3), (3, 3)],
    ]

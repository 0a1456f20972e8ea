"""The prompt tables that a run begins with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import DataError, UsageError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.prompt_tables import prompts_record
from slime_stages.launch.start_run import change_config, start_run
from slime_stages.prompts.table import read_prompt_table
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Seven prompts; three of an iteration."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"input": f"{number} + 1?"}) + "\n" for number in range(7)))
    return {"hf_checkpoint": str(tiny_model), "prompt_data": [str(path)], "rollout_batch_size": 3}


def start(folder: Path, settings: dict[str, Any], **changes: Any) -> RunDir:
    run = RunDir(folder / "run")
    start_run(run, resolved(**settings | changes).config)
    return run


def test_epochs_are_counted_in_whole_batches_and_a_second_start_finds_the_same(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = start(tmp_path, settings, num_epoch=5)
    start_run(run, resolved(**settings, num_epoch=5).config)

    assert read_config(run, 0).data.num_rollout == 7 // 3 * 5
    assert prompts_record(run, "train")["rows"] == 7


def test_a_number_of_iterations_wins_over_epochs(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert read_config(start(tmp_path, settings, num_epoch=5, num_rollout=4), 0).data.num_rollout == 4


def test_fewer_prompts_than_a_batch_are_no_epoch(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="7 prompts are no whole iteration of 8"):
        start(tmp_path, settings, num_epoch=1, rollout_batch_size=8)


def test_rules_that_need_the_count_are_looked_at_once_it_is_known(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="takes 4 steps, with num_rollout = 4 from num_epoch"):
        start(tmp_path, settings, num_epoch=2, lr_decay_style="cosine", lr_warmup_iters=4)


def test_a_table_of_settings_that_nobody_kept_is_made_anew(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The first start ends before its config is frozen."""
    with pytest.raises(UsageError):
        start(tmp_path, settings, num_epoch=2, lr_decay_style="cosine", lr_warmup_iters=4)

    run = start(tmp_path, settings, num_epoch=2, prompt_data=[f"{settings['prompt_data'][0]}@[:4]"])

    assert prompts_record(run, "train")["rows"] == 4
    assert read_config(run, 0).data.num_rollout == 2


def test_a_run_may_be_given_more_epochs(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = start(tmp_path, settings, num_epoch=1)

    change_config(run, resolved(**settings, num_epoch=2).config, allowed=True)

    assert read_config(run, 1).data.num_rollout == 4


def test_without_prompt_data_every_position_asks_the_blank_prompt(tmp_path: Path, settings: dict[str, Any]) -> None:
    generate = "tests.slime_stages.launch.test_prompt_tables.generate"

    run = start(
        tmp_path,
        settings,
        prompt_data=[],
        disable_rollout_global_dataset=True,
        custom_generate_function_path=generate,
    )

    assert [(shard.start, shard.stop) for shard in ensure_plan(run, 1).shards] == [(3, 6)]
    with read_prompt_table(run.prompts_path()) as table:
        assert [row.prompt for row in table.rows([0])] == [""]


def test_verl_data_needs_a_path_alone_and_says_what_was_seen(
    tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": [{"role": "user", "content": "1?"}], "reward_model": {"ground_truth": "1"}, "data_source": "x"}
    Path(settings["prompt_data"][0]).write_text(json.dumps(row) + "\n")

    run = start(tmp_path, settings)

    assert (
        "train: 1 of 1 prompts are in verl's schema: `prompt`, `reward_model.ground_truth`" in capsys.readouterr().err
    )
    with read_prompt_table(run.prompts_path()) as table:
        assert table.row(0).prompt == "<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n"
        assert (table.row(0).label, table.row(0).metadata) == ("1", {"data_source": "x"})


def test_verls_images_that_no_key_names_are_told_of(
    tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": [{"role": "user", "content": "1?"}], "reward_model": {"ground_truth": "1"}}
    rows = [{**row, "images": ["a.png"]}, {**row, "images": []}, row]
    Path(settings["prompt_data"][0]).write_text("".join(json.dumps(row) + "\n" for row in rows))

    start(tmp_path, settings)

    said = capsys.readouterr().err
    assert "warning: train: 1 of 3 prompts have images that the model is not shown" in said
    assert """--multimodal-keys '{"image":"images"}' shows them""" in said


def test_a_bad_row_leaves_no_table_behind(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = Path(settings["prompt_data"][0])
    path.write_text(path.read_text() + '{"input": 7}\n')

    with pytest.raises(DataError, match=r"data\.jsonl, line 8: `input` is neither text nor a list"):
        start(tmp_path, settings)

    assert list((tmp_path / "run" / "prompts").iterdir()) == []


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    return sample

"""Starting, mending and changing a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slime_stages.cli.main import main
from slime_stages.config.frozen import read_frozen
from slime_stages.errors import DataError, UsageError
from slime_stages.launch.iterate import iterations_to_run
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan, evaluates
from slime_stages.launch.prompt_tables import prompts_record
from slime_stages.launch.start_run import change_config, check_trainer, current_revision, mend_run, start_run
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def settings(tiny_model: Path, tiny_prompts: Path) -> dict[str, Any]:
    return {
        "hf_checkpoint": str(tiny_model),
        "prompt_data": [str(tiny_prompts)],
        "input_key": "prompt",
        "label_key": "label",
        "apply_chat_template": True,
        "rollout_batch_size": 6,
        "rollout_shards": 4,
        "rollout_shuffle": True,
        "eval_prompt_data": ["held", str(tiny_prompts)],
        "eval_interval": 2,
    }


@pytest.fixture
def run(settings: dict[str, Any], tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    start_run(run, resolved(**settings).config)
    return run


def test_a_run_that_was_lost_in_parts_is_mended_to_the_same(run: RunDir) -> None:
    before = prompts_record(run, "train")["content"]
    run.prompts_path().unlink()
    run.config_path.unlink()
    for path in run.weights_path(0).iterdir():
        path.unlink()
    run.weights_path(0).rmdir()

    mend_run(run)

    assert prompts_record(run, "train")["content"] == before
    assert read_frozen(run.config_path) == read_config(run, 0)
    assert (run.weights_path(0) / "model.safetensors").exists()


def test_a_model_that_the_trainer_does_not_know_is_rolled_out_and_not_trained(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(settings["hf_checkpoint"], tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "gemma3"}))
    run = RunDir(tmp_path / "run")

    start_run(run, resolved(**{**settings, "hf_checkpoint": str(model)}).config)

    said = capsys.readouterr().err
    assert "gemma3" in said
    assert "it can be rolled out, scored and evaluated, not trained" in said
    with pytest.raises(DataError, match="gemma3"):
        check_trainer(read_config(run, 0))
    assert main(["iter", "--run", str(run.root), "--n", "1"]) == 65


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rm_type": "maths"}, "rm_type: unknown reward type `maths`"),
        (
            {"eval_prompt_data": None, "eval_datasets": {"held": {"path": "", "rm_type": "boxed_dapoo"}}},
            "rm_type of the data set held: unknown reward type `boxed_dapoo`",
        ),
    ],
)
def test_a_reward_type_that_does_not_exist_is_refused_before_anything_is_made(
    settings: dict[str, Any], tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    for dataset in changed.get("eval_datasets", {}).values():
        dataset["path"] = settings["prompt_data"][0]

    with pytest.raises(UsageError, match=says) as caught:
        start_run(RunDir(tmp_path / "refused"), resolved(**settings | changed).config)

    assert "did you mean" in str(caught.value.hint)
    assert not (tmp_path / "refused").exists()


def test_a_prompt_table_is_not_made_again_from_other_prompts(run: RunDir, settings: dict[str, Any]) -> None:
    prompts = Path(settings["prompt_data"][0])
    text = prompts.read_text()
    run.prompts_path().unlink()
    try:
        prompts.write_text("".join(reversed(text.splitlines(keepends=True))))
        with pytest.raises(DataError, match="has other prompts now"):
            mend_run(run)
    finally:
        prompts.write_text(text)


def test_a_changed_config_is_refused_with_the_differences_unless_asked_for(
    run: RunDir, settings: dict[str, Any]
) -> None:
    changed = resolved(**settings, lr=3e-6).config

    with pytest.raises(UsageError, match=r"optimizer\.lr: 1e-06 -> 3e-06"):
        change_config(run, changed, allowed=False)
    assert current_revision(run) == 0
    change_config(run, changed, allowed=True)

    assert current_revision(run) == 1
    assert read_config(run, 1).optimizer.lr == 3e-6
    assert read_config(run, 0).optimizer.lr == 1e-6


def test_an_iteration_keeps_the_config_revision_of_its_plan(run: RunDir, settings: dict[str, Any]) -> None:
    ensure_plan(run, 0)
    change_config(run, resolved(**settings, lr=3e-6).config, allowed=True)

    assert ensure_plan(run, 0).config_revision == 0
    assert ensure_plan(run, 1).config_revision == 1


def test_the_prompts_of_a_run_cannot_change(run: RunDir, settings: dict[str, Any]) -> None:
    other = resolved(**{**settings, "label_key": None}).config

    with pytest.raises(UsageError, match=r"data\.label_key cannot change within a run"):
        change_config(run, other, allowed=True)


def test_which_layers_a_checkpoint_holds_cannot_change(run: RunDir, settings: dict[str, Any]) -> None:
    other = resolved(**settings, mtp_num_layers=1).config

    with pytest.raises(UsageError, match=r"train\.mtp_num_layers cannot change within a run"):
        change_config(run, other, allowed=True)


def test_plans_cut_positions_into_contiguous_shards_and_count_on(run: RunDir) -> None:
    first, second = ensure_plan(run, 0), ensure_plan(run, 1)

    assert [(shard.start, shard.stop) for shard in first.shards] == [(0, 1), (1, 3), (3, 4), (4, 6)]
    assert [(shard.start, shard.stop) for shard in second.shards] == [(6, 7), (7, 9), (9, 10), (10, 12)]
    assert (second.policy_version, second.shuffle) == (1, True)


def test_a_plan_that_was_lost_is_made_again_alike(run: RunDir) -> None:
    plan = ensure_plan(run, 3)
    run.plan_path(3).unlink()

    assert ensure_plan(run, 3) == plan


def test_evaluation_asks_all_prompts_of_its_set_in_their_order(run: RunDir) -> None:
    plan = ensure_eval_plan(run, 4, "held")

    assert [(shard.start, shard.stop) for shard in plan.shards] == [(0, 64)]
    assert (plan.split, plan.policy_version, plan.shuffle) == ("held", 4, False)


def test_evaluation_is_due_before_the_first_iteration_and_every_interval(run: RunDir) -> None:
    config = read_config(run, 0)

    assert [evaluates(config, version) for version in range(5)] == [True, False, True, False, True]


def test_a_new_run_begins_at_iteration_0_and_an_interrupted_iteration_is_finished_first(run: RunDir) -> None:
    assert iterations_to_run(run, 3) == range(3)
    run.stage_path("rollout", 0).mkdir(parents=True)

    assert iterations_to_run(run, 3) == range(4)
    assert iterations_to_run(run, 0) == range(1)

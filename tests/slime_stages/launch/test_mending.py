"""What a run holds besides its iterations is put back by what else tells of it; and what is not whole comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_stages.config.frozen import read_frozen
from slime_stages.errors import DataError, MissingInputError
from slime_stages.launch.iterate import iterations_to_run
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import change_config, mend_run, mend_weights, start_run
from slime_stages.run.rundir import RunDir
from slime_stages.weights.publish import publish_link
from tests.slime_stages.cli.small_run import make_model_folder
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "2 + 2?"}\n{"input": "3 + 3?"}\n')
    return {"hf_checkpoint": str(tiny_model), "prompt_data": [str(prompts)]}


@pytest.fixture
def run(settings: dict[str, Any], tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    start_run(run, resolved(**settings).config)
    return run


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:99])


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"lr": ', b'"lr": 1'))


@pytest.mark.parametrize("damage", [lose, cut, alter])
def test_the_config_in_force_and_its_revision_are_put_back_by_each_other(
    run: RunDir, settings: dict[str, Any], damage: Callable[[Path], None]
) -> None:
    change_config(run, resolved(**settings, lr=3e-6).config, allowed=True)
    ensure_plan(run, 0)
    newest = run.config_revision_path(1)
    expected = newest.read_bytes()

    damage(run.config_path)
    mend_run(run)
    assert run.config_path.read_bytes() == expected
    damage(newest)
    mend_run(run)

    assert newest.read_bytes() == expected


def test_an_interrupted_change_of_the_config_is_carried_through(run: RunDir, settings: dict[str, Any]) -> None:
    before = run.config_path.read_bytes()
    change_config(run, resolved(**settings, lr=3e-6).config, allowed=True)

    run.config_path.write_bytes(before)  # killed between the two writes
    mend_run(run)

    assert read_frozen(run.config_path).optimizer.lr == 3e-6


def test_a_run_without_any_whole_config_says_so(run: RunDir) -> None:
    cut(run.config_path)
    cut(run.config_revision_path(0))

    with pytest.raises(MissingInputError, match="has no frozen config that is whole"):
        mend_run(run)


def test_links_to_the_model_are_put_back_unless_it_is_another_model_now(tmp_path: Path) -> None:
    model, run = make_model_folder(tmp_path / "model"), RunDir(tmp_path / "run")
    publish_link(model, run.weights_path(0))
    link = run.weights_path(0) / "model.safetensors"

    link.unlink()
    mend_weights(run, model)
    assert link.read_text() == "{}"

    (model / "model.safetensors").write_text("{} other")
    with pytest.raises(DataError, match="has 8 bytes, 2 were published"):
        mend_weights(run, model)


def test_prompts_whose_record_was_lost_are_not_made_again_from_other_prompts(
    run: RunDir, settings: dict[str, Any]
) -> None:
    ensure_plan(run, 0)
    Path(settings["prompt_data"][0]).write_text('{"input": "5 + 5?"}\n')

    run.prompts_manifest_path().unlink()

    with pytest.raises(DataError, match="has other prompts now"):
        mend_run(run)


def test_an_altered_plan_is_made_again(run: RunDir) -> None:
    plan = ensure_plan(run, 0)
    path = run.plan_path(0)

    path.write_bytes(path.read_bytes().replace(b'"seed": ', b'"seed": 1'))

    assert ensure_plan(run, 0) == plan


def test_iterations_that_are_not_whole_come_before_new_ones(run: RunDir) -> None:
    for iteration in (0, 1, 2):
        run.stage_path("rollout", iteration).mkdir(parents=True)

    assert iterations_to_run(run, 2) == range(5)
    assert iterations_to_run(run, 0) == range(3)

"""`args` as plug-ins see it: every name that slime's has, whether there is such a setting here or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.config.args import FIXED
from slime_stages.config.fields import fields
from tests.slime_stages.config.settings import resolved

SLIME_NAMES = Path(__file__).with_name("slime_names.txt").read_text().split()


@pytest.mark.parametrize("name", SLIME_NAMES)
def test_args_has_the_name(name: str) -> None:
    assert name in vars(resolved().config.as_args())


def test_a_setting_is_not_a_fixed_name_too() -> None:
    assert sorted(set(FIXED) & set(fields())) == []


def test_what_a_plug_in_changes_in_one_args_is_not_in_the_next() -> None:
    config = resolved().config
    config.as_args().profile_target.append("more")

    assert config.as_args().profile_target == ["train_overall"]


def test_evaluation_sets_are_objects_with_the_values_in_force() -> None:
    args = resolved(eval_prompt_data=["dev", "/dev.jsonl"], eval_temperature=0.0, rollout_stop=["x"]).config.as_args()

    [dev] = args.eval_datasets

    assert (dev.name, dev.path, dev.temperature, dev.stop) == ("dev", "/dev.jsonl", 0.0, ["x"])


def test_evaluation_is_done_by_the_rollout_function_unless_it_has_its_own() -> None:
    shared = resolved(rollout_function_path="a.roll").config.as_args()
    own = resolved(rollout_function_path="a.roll", eval_function_path="a.evaluate").config.as_args()

    assert (shared.eval_function_path, own.eval_function_path) == ("a.roll", "a.evaluate")

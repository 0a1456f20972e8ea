from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

from slime_stages.config import Config, diff
from slime_stages.config.fields import fields, sections
from slime_stages.config.reference import reference
from slime_stages.errors import DataError
from tests.slime_stages.config.settings import resolved


def test_a_frozen_config_reads_back_equal_and_its_bytes_are_always_the_same() -> None:
    config = resolved(rollout_stop=["a"], sglang={"x": [1, 2]}, null_reward=0.5).config

    again = Config.from_json(config.to_json_bytes())

    assert again == config
    assert again.to_json_bytes() == config.to_json_bytes()


def test_a_frozen_config_of_an_older_version_gets_defaults() -> None:
    content = orjson.loads(resolved().config.to_json_bytes())
    del content["gate"], content["train"]["seed"]

    assert Config.from_json(orjson.dumps(content)).train.seed == 1234


def test_a_frozen_config_with_a_foreign_setting_is_refused() -> None:
    with pytest.raises(DataError, match=r"does not fit this version of slime-stages: train\.sed: extra inputs"):
        Config.from_json(resolved().config.to_json_bytes().replace(b'"seed"', b'"sed"'))


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        resolved().config.train.seed = 7  # type: ignore[misc]


def test_a_digest_changes_only_with_the_sections_it_covers() -> None:
    one, other = resolved(lr=1e-6).config, resolved(lr=2e-6).config

    assert one.digest(["train", "optimizer"]) != other.digest(["train", "optimizer"])
    assert one.digest(["train", "rollout"]) == other.digest(["rollout", "train"])
    assert len(one.digest([])) == 32


def test_staleness_is_in_no_digest_of_the_config_since_the_plan_has_it() -> None:
    one, other = resolved().config, resolved(staleness=1).config

    assert one.digest(["rollout"]) == other.digest(["rollout"])
    assert Config.from_json(other.to_json_bytes()).rollout.staleness == 1


def test_the_difference_of_two_configs_is_listed_by_setting() -> None:
    changes = diff(resolved().config, resolved(lr=2e-6, rollout_stop=["a"]).config)

    assert [str(change) for change in changes] == [
        "rollout.rollout_stop: None -> ('a',)",
        "optimizer.lr: 1e-06 -> 2e-06",
    ]


def test_plug_ins_see_slimes_names_in_one_namespace() -> None:
    args = resolved(n_samples_per_prompt=2, sglang={"tool_call_parser": "qwen"}, rollout_stop=["a"]).config.as_args()

    assert args.hf_checkpoint == "/model"
    assert args.prompt_data == "/prompts.jsonl"
    assert args.rollout_stop == ["a"]
    assert args.global_batch_size == 8
    assert (args.grpo_std_normalization, args.rewards_normalization) == (True, True)
    assert args.sglang_tool_call_parser == "qwen"
    assert args.sglang_speculative_algorithm is None
    assert args.partial_rollout is False
    assert getattr(args, "nothing", "fallback") == "fallback"


def test_a_plug_in_that_changes_args_does_not_change_the_config() -> None:
    config = resolved(apply_chat_template_kwargs={"a": 1}).config

    config.as_args().apply_chat_template_kwargs["a"] = 2

    assert config.data.apply_chat_template_kwargs == {"a": 1}


def test_a_misspelt_argument_names_the_likely_one() -> None:
    with pytest.raises(AttributeError, match=r"args has no `rollout_temprature`; did you mean `rollout_temperature`\?"):
        resolved().config.as_args().rollout_temprature  # noqa: B018


def test_every_setting_has_a_text_and_stands_on_the_reference_page() -> None:
    page = reference()

    for setting in fields().values():
        assert setting.description.endswith("."), setting.name
        assert f"| `{setting.name}` |" in page
    assert all(f"## [{section}]" in page for section in sections())


def test_the_surface_of_settings_is_the_one_agreed_on() -> None:
    """A new, changed or removed setting changes `surface.txt`, too: people's files and scripts depend on them."""
    surface = [
        f"{one.section}.{one.name} {one.type_label} = {'required' if one.required else one.default!r}"
        for one in fields().values()
    ]

    assert surface == Path(__file__).with_name("surface.txt").read_text().splitlines()

"""What the engine is asked for: by training, and by each evaluation set."""

from __future__ import annotations

from typing import Any

from slime_stages.config import Config
from slime_stages.generation.sampling import generate_path_of, mark_for_evaluation, sampling_of
from slime_stages.sample import Sample
from tests.slime_stages.config.settings import resolved


def with_set(entry: dict[str, Any], **settings: Any) -> Config:
    return resolved(eval_datasets={"dev": {"path": "/dev.jsonl", **entry}}, **settings).config


def test_training_asks_for_what_it_has_always_asked() -> None:
    params = sampling_of(resolved(rollout_stop=["</s>"], rollout_max_response_len=8).config).params(7)

    assert params == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 8,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "sampling_seed": 7,
        "stop": ["</s>"],
    }


def test_a_set_asks_for_what_is_its_own() -> None:
    entry = {"temperature": 0.0, "stop": ["x"], "stop_token_ids": [3], "min_new_tokens": 2, "repetition_penalty": 1.1}

    params = sampling_of(with_set({**entry, "no_stop_trim": False}, rollout_stop=["y"]), "dev").params(7)

    assert (params["temperature"], params["stop"], params["stop_token_ids"]) == (0.0, ["x"], [3])
    assert (params["min_new_tokens"], params["repetition_penalty"], params["no_stop_trim"]) == (2, 1.1, False)


def test_a_response_has_the_room_that_its_prompt_leaves() -> None:
    config = with_set({"max_context_len": 10, "max_response_len": 8, "min_new_tokens": 6})
    sampling = sampling_of(config, "dev")

    rooms = [sampling.params(0, prompt_length=length)["max_new_tokens"] for length in (1, 2, 7, 12)]

    assert rooms == [8, 8, 3, 1]
    assert sampling.params(0, prompt_length=7)["min_new_tokens"] == 3


def test_a_sample_of_evaluation_carries_its_reward_metadata_and_function() -> None:
    entry = {
        "rm_type": "math",
        "metadata_overrides": {"level": "hard", "kept": 2},
        "custom_rm_path": "my.reward",
        "custom_generate_function_path": "my.generate",
    }
    config = with_set(entry, custom_generate_function_path="all.generate", custom_rm_path="all.reward")
    sample = Sample(metadata={"kept": 1, "rm_type": "f1"})

    mark_for_evaluation(sample, config, "dev")

    assert sample.metadata == {"kept": 2, "rm_type": "math", "level": "hard"}
    assert (sample.custom_rm_path, sample.generate_function_path) == ("my.reward", "my.generate")
    assert (generate_path_of(config, "dev"), generate_path_of(config)) == ("my.generate", "all.generate")


def test_a_reward_function_for_all_evaluation_comes_before_the_run_s() -> None:
    sample = Sample()

    mark_for_evaluation(sample, with_set({}, eval_custom_rm_path="eval.reward", custom_rm_path="all.reward"), "dev")

    assert sample.custom_rm_path == "eval.reward"


def test_what_no_set_says_is_not_written_on_the_sample() -> None:
    sample = Sample(metadata={"a": 1})

    mark_for_evaluation(sample, with_set({}, custom_rm_path="all.reward"), "dev")

    assert (sample.metadata, sample.custom_rm_path, sample.generate_function_path) == ({"a": 1}, None, None)

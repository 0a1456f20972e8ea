from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import DataError
from slime_stages.prompts.files import SourceRow
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.source import SourcePrompt, read_prompt

VERL_ROW = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "3 + 4?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "extra_info": {"split": "train", "index": 0},
}


def read(values: dict[str, Any], **settings: Any) -> SourcePrompt:
    row = SourceRow(Path("data.jsonl"), 7, values, "line")
    return read_prompt(row, PromptSettings(prompt_data=("data.jsonl",), **settings))


def test_slimes_keys_are_read_and_text_stays_text() -> None:
    values = {"question": "3 + 4?", "answer": 7, "metadata": {"rm_type": "math"}}

    prompt = read(values, input_key="question", label_key="answer")

    assert prompt == SourcePrompt(prompt="3 + 4?", label=7, metadata={"rm_type": "math"}, tools=None)


def test_metadata_may_be_missing_null_or_json_text() -> None:
    assert read({"input": "a"}).metadata == {}
    assert read({"input": "a", "metadata": None}).metadata == {}
    assert read({"input": "a", "metadata": '{"b": 1}'}).metadata == {"b": 1}


def test_tools_are_a_list_or_its_json_text_and_go_into_metadata_too() -> None:
    tools = [{"type": "function", "function": {"name": "search"}}]

    for written in (tools, json.dumps(tools)):
        prompt = read({"input": "a", "tools": written, "metadata": {"b": 1}})
        assert prompt.tools == tools
        assert prompt.metadata == {"b": 1, "tools": tools}


def test_verls_schema_needs_no_flags() -> None:
    prompt = read(VERL_ROW)

    assert prompt.prompt == [{"role": "user", "content": "3 + 4?"}]
    assert prompt.label == "7"
    assert prompt.metadata == {"data_source": "gsm8k", "split": "train", "index": 0}


def test_keys_that_are_there_win_over_verls_schema() -> None:
    values = {**VERL_ROW, "question": "5?", "label": "5", "metadata": {"b": 1}}

    prompt = read(values, input_key="question", label_key="label")

    assert (prompt.prompt, prompt.label, prompt.metadata) == ("5?", "5", {"b": 1})


def test_a_missing_prompt_names_the_place_the_keys_and_the_flag() -> None:
    with pytest.raises(DataError) as caught:
        read({"prompt": "a", "answer": "7"})

    assert caught.value.message == "data.jsonl, line 7 has no `input`; its keys are prompt, answer"
    assert caught.value.hint == "--input-key prompt"


def test_a_missing_label_suggests_the_nearest_key() -> None:
    with pytest.raises(DataError) as caught:
        read({"input": "a", "answers": "7"}, label_key="answer")

    assert caught.value.hint == "--label-key answers"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input": 7}, "`input` is neither text nor a list of messages with a role: 7"),
        ({"input": []}, "`input` is neither text nor a list of messages"),
        ({"input": [{"content": "a"}]}, "`input` is neither text nor a list of messages"),
        ({"input": "a", "metadata": [1]}, r"`metadata` is not a dict: \[1\]"),
        ({"input": "a", "metadata": "math"}, "`metadata` is text but not JSON"),
        ({"input": "a", "tools": {"name": "search"}}, "`tools` is not a list of tools"),
    ],
)
def test_a_value_of_another_kind_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"data.jsonl, line 7: {message}"):
        read(values)


def test_dots_lead_into_a_column_unless_a_column_has_that_very_name() -> None:
    values = {"input": "a", "reward_model": {"ground_truth": "7"}, "info": {"meta": {"b": 1}}, "a.b": "8"}

    assert read(values, label_key="reward_model.ground_truth", metadata_key="info.meta").metadata == {"b": 1}
    assert read(values, label_key="reward_model.ground_truth").label == "7"
    assert read(values, label_key="a.b").label == "8"
    with pytest.raises(DataError, match=r"line 7 has no `reward_model\.truth`"):
        read(values, label_key="reward_model.truth")


def test_prompt_label_and_metadata_need_no_keys_either() -> None:
    prompt = read({"prompt": "3 + 4?", "label": "7", "metadata": {"b": 1}})

    assert (prompt.prompt, prompt.label, prompt.metadata, prompt.schema) == ("3 + 4?", "7", {"b": 1}, "slime")


def test_a_row_with_the_key_that_was_asked_for_is_in_no_schema() -> None:
    prompt = read({"input": "3 + 4?", "prompt": "other", "label": "7"})

    assert (prompt.prompt, prompt.label, prompt.schema) == ("3 + 4?", None, None)


def test_an_empty_text_of_tools_is_no_tools() -> None:
    assert read({"input": "a", "tools": ""}).tools is None

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.prompts.build import PromptCounts, build_prompts
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.table import PromptRow


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(path: Path | str, model: Path, **settings: Any) -> list[PromptRow]:
    return counted(path, model, **settings)[0]


def counted(path: Path | str, model: Path, **settings: Any) -> tuple[list[PromptRow], PromptCounts]:
    counts = PromptCounts()
    return list(build_prompts(PromptSettings(prompt_data=(str(path),), **settings), model, counts)), counts


def test_text_is_tokenised_as_it_is(tmp_path: Path, tiny_model: Path) -> None:
    path = write(tmp_path / "data.jsonl", {"input": "ab", "answer": 7})

    (row,) = build(path, tiny_model, label_key="answer")

    assert (row.prompt, row.label, row.metadata, row.source) == ("ab", 7, {}, f"{path}:1")
    assert decoded(row.prompt_token_ids, tiny_model) == "ab"


def test_the_chat_template_opens_an_assistant_turn(tmp_path: Path, tiny_model: Path) -> None:
    path = write(tmp_path / "data.jsonl", {"input": "Hi"}, {"input": [{"role": "system", "content": "Be brief"}]})

    rows = build(path, tiny_model, apply_chat_template=True)

    assert [row.prompt for row in rows] == [
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>assistant\n",
    ]
    assert decoded(rows[0].prompt_token_ids, tiny_model) == rows[0].prompt


def test_tools_and_template_arguments_reach_the_template(tmp_path: Path, tiny_model: Path) -> None:
    path = write(tmp_path / "data.jsonl", {"input": "Hi", "tools": '[{"name": "search"}]'})

    (row,) = build(path, tiny_model, apply_chat_template=True, apply_chat_template_kwargs={"enable_thinking": False})

    assert row.prompt == (
        '<|im_start|>system\n# Tools\n{"name": "search"}\n<|im_end|>\n'
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert row.metadata == {"tools": [{"name": "search"}]}


def test_messages_stay_messages_without_the_template_and_have_no_length(tmp_path: Path, tiny_model: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    path = write(tmp_path / "data.jsonl", {"input": messages})

    rows, counts = counted(path, tiny_model, rollout_max_prompt_len=1)

    assert (rows[0].prompt, rows[0].prompt_token_ids) == (messages, None)
    assert counts.unmeasured == 1


def test_prompts_of_more_tokens_are_dropped_and_counted(tmp_path: Path, tiny_model: Path) -> None:
    # Digits have no merges: one token each.
    path = write(tmp_path / "data.jsonl", {"input": "12"}, {"input": "1234"}, {"input": "123"}, {"input": "12345"})

    rows, counts = counted(path, tiny_model, rollout_max_prompt_len=3)

    assert [row.prompt for row in rows] == ["12", "123"]
    assert (counts.read, counts.dropped, counts.longest_dropped) == (4, 2, 5)


def test_a_limit_that_leaves_nothing_is_refused_with_one_that_would_not(tmp_path: Path, tiny_model: Path) -> None:
    path = write(tmp_path / "data.jsonl", {"input": "1234"})

    with pytest.raises(DataError, match=r"all 1 prompts of .* have more than 3 tokens") as caught:
        build(path, tiny_model, rollout_max_prompt_len=3)

    assert caught.value.hint == "--rollout-max-prompt-len 4"


def test_an_empty_file_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(DataError, match="holds no prompts"):
        build(write(tmp_path / "data.jsonl"), tiny_model)


def test_the_prompt_id_is_the_same_for_the_same_content_wherever_it_stands(tmp_path: Path, tiny_model: Path) -> None:
    row = {"input": "Hi", "label": "7", "metadata": {"a": 1, "b": 2}}
    turned = {"metadata": {"b": 2, "a": 1}, "label": "7", "input": "Hi"}
    first = build(write(tmp_path / "a.jsonl", row), tiny_model, label_key="label")
    second = build(write(tmp_path / "b.jsonl", {"input": "x", "label": ""}, turned), tiny_model, label_key="label")
    templated = build(tmp_path / "a.jsonl", tiny_model, label_key="label", apply_chat_template=True)

    assert first[0].prompt_id == second[1].prompt_id == templated[0].prompt_id
    assert len(first[0].prompt_id) == 32


@pytest.mark.parametrize(
    "change", [{"input": "Ho"}, {"label": "8"}, {"label": 7}, {"metadata": {"a": 2}}, {"tools": []}]
)
def test_the_prompt_id_changes_with_any_part(tmp_path: Path, tiny_model: Path, change: dict[str, Any]) -> None:
    row = {"input": "Hi", "label": "7", "metadata": {"a": 1}}

    rows = build(write(tmp_path / "a.jsonl", row, {**row, **change}), tiny_model, label_key="label")

    assert rows[0].prompt_id != rows[1].prompt_id


def test_several_files_follow_each_other(tmp_path: Path, tiny_model: Path) -> None:
    write(tmp_path / "a.jsonl", {"input": "1"}, {"input": "2"})
    write(tmp_path / "b.jsonl", {"input": "3"})
    settings = PromptSettings(prompt_data=(f"{tmp_path}/b.jsonl", f"{tmp_path}/a.jsonl@[1:]"))

    rows = list(build_prompts(settings, tiny_model, PromptCounts()))

    assert [row.source for row in rows] == [f"{tmp_path}/b.jsonl:1", f"{tmp_path}/a.jsonl:2"]


def test_a_verl_parquet_file_needs_no_keys(tmp_path: Path, tiny_model: Path) -> None:
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "3 + 4?"}],
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"index": 0},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "data.parquet")

    (built,) = build(tmp_path / "data.parquet", tiny_model, apply_chat_template=True)

    assert built.prompt == "<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    assert (built.label, built.metadata) == ("7", {"data_source": "gsm8k", "index": 0})


def test_a_whole_number_that_json_would_round_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    path = write(tmp_path / "data.jsonl", {"input": "a", "label": 2**70})

    with pytest.raises(DataError, match="line 1 holds a value that JSON cannot"):
        build(path, tiny_model, label_key="label")


def test_a_message_that_the_template_refuses_is_named(tmp_path: Path, tiny_model: Path) -> None:
    path = write(tmp_path / "data.jsonl", {"input": [{"role": "user", "content": 7}]})

    with pytest.raises(DataError, match=r"data.jsonl, line 1: the chat template refuses it"):
        build(path, tiny_model, apply_chat_template=True)


def test_a_tokenizer_without_a_template_or_without_a_folder_is_an_error_that_says_so(
    tmp_path: Path, tiny_model: Path
) -> None:
    path = write(tmp_path / "data.jsonl", {"input": "a"})
    bare = tmp_path / "bare"
    bare.mkdir()
    (empty := tmp_path / "empty").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((tiny_model / name).read_bytes())

    with pytest.raises(UsageError, match="has no chat template"):
        build(path, bare, apply_chat_template=True)
    with pytest.raises(MissingInputError, match="there is no model folder"):
        build(path, tmp_path / "none")
    with pytest.raises(DataError, match="holds no tokenizer that can be loaded"):
        build(path, empty)


def decoded(ids: Any, tokenizer: Path) -> str:
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(tokenizer).decode(ids))


def test_a_verl_file_gets_the_template_unasked_and_other_messages_do_not(tmp_path: Path, tiny_model: Path) -> None:
    messages = [{"role": "user", "content": "3 + 4?"}]
    verl = {"prompt": messages, "reward_model": {"ground_truth": "7"}}
    path = write(tmp_path / "data.jsonl", verl, {"input": messages})

    rows, counts = counted(path, tiny_model, apply_chat_template_if_recognised=True)

    assert [row.prompt for row in rows] == ["<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n", messages]
    assert counts.schemas == {"verl": 1}


def test_without_prompt_data_there_is_one_blank_prompt(tiny_model: Path) -> None:
    counts = PromptCounts()

    [row] = build_prompts(PromptSettings(prompt_data=(), disable_rollout_global_dataset=True), tiny_model, counts)

    assert (row.prompt, row.prompt_token_ids, row.label, row.metadata) == ("", [], None, {})
    assert counts.read == 1


def test_rows_are_read_as_they_are_taken(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third row is bad, and two fit into what is tokenised at once."""
    monkeypatch.setattr("slime_stages.prompts.build.TOKENIZED_TEXTS", 2)
    path = write(tmp_path / "data.jsonl", {"input": "a"}, {"input": "b"}, {"input": 7})

    rows = build_prompts(PromptSettings(prompt_data=(str(path),)), tiny_model, PromptCounts())

    assert [next(rows).prompt, next(rows).prompt] == ["a", "b"]
    with pytest.raises(DataError, match="line 3"):
        next(rows)


def test_prompt_ids_are_the_ones_of_the_runs_that_exist(tmp_path: Path, tiny_model: Path) -> None:
    rows = build(write(tmp_path / "data.jsonl", {"input": "Hi", "label": "7"}), tiny_model, label_key="label")

    assert rows[0].prompt_id == "1cfcdd6a5f643ca927d89beb8810f354"

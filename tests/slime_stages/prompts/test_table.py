from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slime_stages.data.shards import ROWS_PER_GROUP
from slime_stages.errors import DataError, MissingInputError
from slime_stages.prompts.build import PromptCounts, build_prompts
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.table import PromptRow, read_prompt_table, write_prompt_table

MESSAGES = [{"role": "user", "content": "Hi", "tool_calls": None}]


def prompt(number: int, **changes: Any) -> PromptRow:
    values: dict[str, Any] = {
        "prompt_id": f"{number:032x}",
        "prompt": f"prompt {number}",
        "prompt_token_ids": [number, number + 1],
        "label": str(number),
        "metadata": {"number": number},
        "source": f"data.jsonl:{number}",
    }
    return PromptRow(**{**values, **changes})


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        prompt(0),
        prompt(1, label=None, metadata={}),
        prompt(2, prompt=MESSAGES, prompt_token_ids=None, label={"answer": [1.5, None, "ü"]}),
        prompt(3, prompt="", prompt_token_ids=[]),
    ]

    assert write_prompt_table(tmp_path / "prompts.parquet", rows) == 4

    with read_prompt_table(tmp_path / "prompts.parquet") as table:
        assert len(table) == 4
        assert [plain(table.row(index)) for index in range(4)] == [plain(row) for row in rows]
        assert table.token_counts.tolist() == [2, 2, -1, 0]


def test_rows_in_any_order_are_found_across_row_groups(tmp_path: Path) -> None:
    write_prompt_table(tmp_path / "prompts.parquet", (prompt(number) for number in range(1300)))

    with read_prompt_table(tmp_path / "prompts.parquet") as table:
        found = table.rows([1299, 0, 255, 256, 0])
        assert [row.label for row in found] == ["1299", "0", "255", "256", "0"]
        assert table.column("source")[1299].as_py() == "data.jsonl:1299"


def test_a_row_group_is_read_once_for_all_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_prompt_table(tmp_path / "prompts.parquet", (prompt(number) for number in range(1300)))
    with read_prompt_table(tmp_path / "prompts.parquet") as table:
        read_group, groups = table._file.read_row_group, []
        counting = SimpleNamespace(read_row_group=lambda group: groups.append(group) or read_group(group))
        with monkeypatch.context() as patch:
            patch.setattr(table, "_file", counting)
            assert [row.label for row in table.rows([1200, 5, 1100, 3])] == ["1200", "5", "1100", "3"]
            assert table.row(1101).label == "1101"

    assert groups == [0, 1100 // ROWS_PER_GROUP]


def test_ids_are_int32_arrays(tmp_path: Path) -> None:
    write_prompt_table(tmp_path / "prompts.parquet", [prompt(0), prompt(7)])

    with read_prompt_table(tmp_path / "prompts.parquet") as table:
        ids = table.row(1).prompt_token_ids

    assert isinstance(ids, np.ndarray)
    assert (ids.dtype, ids.tolist()) == (np.int32, [7, 8])


def test_a_missing_table_and_a_truncated_one_are_different_errors(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    with pytest.raises(MissingInputError):
        read_prompt_table(path)

    write_prompt_table(path, [prompt(0)])
    path.write_bytes(path.read_bytes()[:-5])

    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_prompt_table(path)


def test_a_failing_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.jsonl:0: a value cannot be stored as JSON"):
        write_prompt_table(tmp_path / "prompts.parquet", [prompt(0, label=object())])

    assert list(tmp_path.iterdir()) == []


def test_a_file_of_sums_goes_through_the_table_unchanged(tmp_path: Path, tiny_model: Path, tiny_prompts: Path) -> None:
    settings = PromptSettings(
        prompt_data=(str(tiny_prompts),), input_key="prompt", label_key="label", apply_chat_template=True
    )
    built = list(build_prompts(settings, tiny_model, PromptCounts()))

    write_prompt_table(tmp_path / "prompts.parquet", built)

    with read_prompt_table(tmp_path / "prompts.parquet") as table:
        assert [plain(row) for row in table.rows(range(64))] == [plain(row) for row in built]
        assert table.row(3).label == str(sum(table.row(3).metadata["terms"]))


def plain(row: PromptRow) -> dict[str, Any]:
    ids = None if row.prompt_token_ids is None else list(map(int, row.prompt_token_ids))
    return {name: getattr(row, name) for name in PromptRow.__slots__} | {"prompt_token_ids": ids}

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.prompts.locate import read_rows
from slime_stages.prompts.names import split_slice

ROWS = [{"input": letter} for letter in "abcdef"]


def letters(prompt_data: object) -> str:
    return "".join(row.values["input"] for row in read_rows(str(prompt_data)))


@pytest.fixture(params=[".jsonl", ".json", ".parquet"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"data{request.param}"
    if request.param == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        lines: Any = [json.dumps(row) for row in ROWS]
        path.write_text("\n\n".join(lines) if request.param == ".jsonl" else f"[{','.join(lines)}]")
    return path


@pytest.mark.parametrize(
    ("slice_", "expected"),
    [
        ("", "abcdef"),
        ("@[1:3]", "bc"),
        ("@[:2]", "ab"),
        ("@[4:]", "ef"),
        ("@[-2:]", "ef"),
        ("@[:-4]", "ab"),
        ("@[1:-1]", "bcde"),
        ("@[4:100]", "ef"),
        ("@[:]", "abcdef"),
        ("@[0:0]", ""),
    ],
)
def test_a_slice_takes_rows_as_python_does(data: Path, slice_: str, expected: str) -> None:
    assert letters(f"{data}{slice_}") == expected


def test_a_row_knows_its_line_in_spite_of_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"input": "a"}\n\n{"input": "b"}\n')

    assert [row.place for row in read_rows(str(path))] == [f"{path}, line 1", f"{path}, line 3"]


def test_a_bad_line_is_named_with_its_number_and_its_start(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"input": "a"}\n{"input": "b"\n{"input": "c"}\n')

    with pytest.raises(DataError, match=r'data.jsonl, line 2 is not JSON .*: {"input": "b"') as caught:
        letters(path)

    assert caught.value.hint == f"sed -n 2p {path}   # then mend or delete the line"


def test_a_bad_line_behind_the_slice_is_never_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"input": "a"}\nnot JSON\n')

    assert letters(f"{path}@[:1]") == "a"


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"input": "\xff"}\n')

    with pytest.raises(DataError, match=r"line 1 is not JSON .*\\xff"):
        letters(path)


def test_a_line_that_is_a_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"input": "a"}\n["b"]\n')

    with pytest.raises(DataError, match=r"line 2 is not an object with keys: \[\"b\"\]"):
        letters(path)


def test_an_array_named_jsonl_is_told_to_be_renamed(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('[\n{"input": "a"}]')

    with pytest.raises(DataError) as caught:
        letters(path)

    assert caught.value.hint == f"one JSON array is a .json file: mv {path} {tmp_path / 'data.json'}"


def test_a_missing_file_a_folder_another_suffix_and_a_bad_slice_are_different_errors(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("input\na\n")

    with pytest.raises(MissingInputError, match="there is no prompt data"):
        letters(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"is none of \.jsonl, \.json, \.parquet"):
        letters(tmp_path / "data.csv")
    with pytest.raises(UsageError, match="the slice of"):
        letters(tmp_path / "data.jsonl@[0:4:2]")


def test_a_truncated_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-9])

    with pytest.raises(DataError, match="cannot be read as Parquet"):
        letters(path)


def test_an_at_sign_in_a_path_is_no_slice() -> None:
    assert split_slice("a@b/data.jsonl@[2:]") == ("a@b/data.jsonl", 2, None)
    assert split_slice("a@b/data.jsonl") == ("a@b/data.jsonl", None, None)

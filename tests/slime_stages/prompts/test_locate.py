"""Where `--prompt-data` finds rows: formats, folders, saved and cached data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.prompts.locate import read_rows


def rows(text: str) -> list[dict[str, Any]]:
    return [{"input": letter} for letter in text]


def letters(prompt_data: Path | str) -> str:
    return "".join(row.values["input"] for row in read_rows(str(prompt_data)))


def write_jsonl(path: Path, text: str) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(text)))


def write_parquet(path: Path, text: str) -> None:
    pq.write_table(pa.Table.from_pylist(rows(text)), path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of data sets in place of the user's."""
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def fill_cache(cache: Path, name: str, **splits: str) -> None:
    """As `datasets.load_dataset` leaves it: from local files, then under the folder of the name."""
    folder = cache / "origin" / name.rpartition("/")[2]
    folder.mkdir(parents=True)
    for split, text in splits.items():
        write_jsonl(folder / f"{split}.jsonl", text)
    files = {split: str(folder / f"{split}.jsonl") for split in splits}
    datasets.load_dataset("json", data_files=files, cache_dir=str(cache / "made"))
    [made] = (cache / "made" / "json").glob("default-*/0.0.0/*/")
    target = cache / "cache" / name.replace("/", "___") / "default" / "0.0.0" / "abc"
    target.parent.mkdir(parents=True)
    made.rename(target)
    for path in target.glob("json-*.arrow"):
        path.rename(target / path.name.replace("json-", f"{name.rpartition('/')[2]}-", 1))
    info = json.loads((target / "dataset_info.json").read_text())
    (target / "dataset_info.json").write_text(json.dumps(info | {"config_name": "default"}))


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_files_of_both_formats_are_read_with_slices(tmp_path: Path, stream: bool) -> None:
    path, table = tmp_path / "data.arrow", pa.Table.from_pylist(rows("abcdef"))
    new_writer = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new_writer(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)

    assert letters(path) == "abcdef"
    assert letters(f"{path}@[-5:-1]") == "bcde"
    assert [row.place for row in read_rows(f"{path}@[4:5]")] == [f"{path}, row 5"]


def test_a_truncated_arrow_file_is_a_data_error(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows("abcdef"))
    with pa.ipc.new_file(tmp_path / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    whole = (tmp_path / "data.arrow").read_bytes()
    (tmp_path / "data.arrow").write_bytes(whole[:-20])

    with pytest.raises(DataError, match=r"data\.arrow cannot be read as Arrow after row 0"):
        letters(tmp_path / "data.arrow")


def test_a_json_file_may_hold_an_object_a_line(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data.json", "abc")

    assert letters(tmp_path / "data.json") == "abc"
    assert [row.place for row in read_rows(f"{tmp_path}/data.json@[-1:]")] == [f"{tmp_path}/data.json, line 3"]


def test_an_object_over_several_lines_is_told_how_to_become_one(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{\n  "input": "a"\n}\n')

    with pytest.raises(DataError, match="line 1 is not JSON") as caught:
        letters(path)

    assert caught.value.hint == f"one object a line: jq -c . {path} > {tmp_path}/data.jsonl"


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "part-1.parquet", "cd")
    write_parquet(tmp_path / "part-0.parquet", "ab")
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / "_SUCCESS").write_text("")

    assert letters(tmp_path) == "abcd"
    assert letters(f"{tmp_path}@[1:3]") == "bc"
    assert [row.place for row in read_rows(f"{tmp_path}@[2:3]")] == [f"{tmp_path}/part-1.parquet, row 1"]


def test_a_folder_whose_file_names_tell_splits_is_read_as_one_split(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", "ab")
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", "c")
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", "xyz")

    assert letters(tmp_path) == "abc"
    assert letters(f"{tmp_path}:test") == "xyz"
    assert letters(f"{tmp_path}:test@[-1:]") == "z"
    with pytest.raises(UsageError, match="has the splits test, train, not dev") as caught:
        letters(f"{tmp_path}:dev")
    assert caught.value.hint == f"--prompt-data {tmp_path}:test"


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("")

    with pytest.raises(UsageError, match=r"holds no \.parquet, \.arrow, \.jsonl, \.json"):
        letters(tmp_path)


def test_what_datasets_saved_to_disk_is_read_back(tmp_path: Path) -> None:
    train = datasets.Dataset.from_list(rows("abcdef")).select([5, 3, 1])
    both = datasets.DatasetDict(train=train, test=datasets.Dataset.from_list(rows("xyz")))
    train.save_to_disk(tmp_path / "one", num_shards=2)
    both.save_to_disk(tmp_path / "both")

    assert letters(tmp_path / "one") == "fdb"
    assert letters(tmp_path / "both") == "fdb"
    assert letters(f"{tmp_path}/both:test@[:2]") == "xy"
    assert letters(tmp_path / "both" / "test") == "xyz"


def test_a_saved_data_set_that_lost_a_file_or_its_state_says_so(tmp_path: Path) -> None:
    datasets.Dataset.from_list(rows("abc")).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow cannot be read as Arrow .*No such file"):
        letters(tmp_path / "saved")

    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        letters(tmp_path / "saved")


def test_a_name_is_found_among_the_data_sets_that_were_loaded_before(cache: Path) -> None:
    fill_cache(cache, "org/sums", train="abc", test="xy")

    assert letters("hf:org/sums") == "abc"
    assert letters("hf:org/sums:test") == "xy"
    assert letters("hf:org/sums:default:test@[-1:]") == "y"
    with pytest.raises(UsageError, match="has the splits test, train, not dev"):
        letters("hf:org/sums:dev")
    with pytest.raises(UsageError, match=r"other configurations.*'default'"):
        letters("hf:org/sums:main:test")


def test_a_name_is_found_among_the_repositories_that_were_downloaded(cache: Path) -> None:
    snapshot = cache / "hub" / "datasets--org--sums" / "snapshots" / "0123"
    (snapshot / "main").mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    write_parquet(snapshot / "main" / "train-00000-of-00001.parquet", "abc")
    write_parquet(snapshot / "main" / "test-00000-of-00001.parquet", "xy")

    assert letters("hf:org/sums:main:test") == "xy"
    assert letters("hf:org/sums:main") == "abc"


def test_a_name_that_is_nowhere_says_how_to_fill_the_cache(cache: Path) -> None:
    with pytest.raises(MissingInputError, match="org/sums is not in the offline cache") as caught:
        letters("hf:org/sums:train")

    assert caught.value.hint is not None
    assert "hf download --repo-type dataset org/sums" in caught.value.hint

"""Shards: every row's lengths are checked, what is not declared is refused, and other tools read them without us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slime_stages.data.sample_table import sample_columns
from slime_stages.data.schema import ENUM, LOG_PROBS, MASK, REWARD, ROLLOUT, TOKENS, ShardSchema, column, optional
from slime_stages.data.shards import (
    ShardWriter,
    build_table,
    flat_lists,
    list_array,
    open_shard,
    read_batches,
    read_shard,
)
from slime_stages.errors import DataError, MissingInputError
from slime_stages.sample import Sample

TINY = ShardSchema(
    kind="tiny",
    version=2,
    purpose="A table small enough to check by hand.",
    columns=(
        column("tokens", TOKENS, "[N]"),
        column("length", pa.int32(), "N"),
        optional("mask", MASK, "[N]"),
        optional("log_probs", LOG_PROBS, "[N]"),
        optional("offsets", TOKENS, "[N + 1]"),
        column("status", ENUM, "how it went"),
        column("response_length", pa.int32(), "at most N"),
    ),
    parallel={"tokens": ("length", 0), "mask": ("length", 0), "log_probs": ("length", 0), "offsets": ("length", 1)},
    at_most={"response_length": "length"},
)


def tiny(**columns: Any) -> dict[str, Any]:
    """Two rows of 2 and 1 tokens."""
    return {
        "tokens": [[1, 2], [3]],
        "length": [2, 1],
        "mask": [[1, 0], None],
        "log_probs": [None, [-0.5]],
        "offsets": [[0, 1, 1], None],
        "status": ["completed", "failed"],
        "response_length": [2, 0],
        **columns,
    }


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return written(tmp_path / "tiny.parquet", tiny())


def written(path: Path, columns: dict[str, Any], schema: ShardSchema = TINY) -> Path:
    with ShardWriter(path, schema, {"slime_stages.run_id": "run-1"}) as writer:
        writer.write(columns)
    return path


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table], **metadata: str) -> Path:
    """The file as another program would write it, its metadata kept."""
    table = change(pq.read_table(path))
    kept = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    pq.write_table(table.replace_schema_metadata(kept | metadata), path)
    return path


def changed(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        type_ = table.field(place).type
        return table.set_column(place, pa.field(name, type_), pa.array(values, type_))

    return change


def test_rows_come_back_with_their_metadata(shard: Path) -> None:
    table = read_shard(shard, TINY)

    assert table.to_pydict() == tiny()
    assert open_shard(shard, TINY).schema_arrow.metadata[b"slime_stages.run_id"] == b"run-1"


def test_some_columns_can_be_read_alone(shard: Path) -> None:
    assert read_shard(shard, TINY, columns=["length"]).to_pydict() == {"length": [2, 1]}


def test_a_shard_without_rows_is_read_too(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "empty.parquet", TINY):
        pass

    table = read_shard(tmp_path / "empty.parquet", TINY, columns=["tokens"])

    assert (table.num_rows, table.column_names) == (0, ["tokens"])
    assert [array.tolist() for array in flat_lists(table["tokens"])] == [[], [0]]


def test_row_groups_are_read_one_at_a_time(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "two.parquet", TINY) as writer:
        writer.write(tiny())
        writer.write(tiny(status=["aborted", "pending"]))

    batches = list(read_batches(tmp_path / "two.parquet", TINY))

    assert writer.rows == 4
    assert [batch["status"].to_pylist() for batch in batches] == [["completed", "failed"], ["aborted", "pending"]]
    whole = read_shard(tmp_path / "two.parquet", TINY)
    assert whole["status"].to_pylist() == ["completed", "failed", "aborted", "pending"]


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"tokens": [[1, 2], [3, 4]]}, "row 1 has 2 tokens, but length asks for 1"),
        ({"mask": [[1], None]}, "row 0 has 1 mask, but length asks for 2"),
        ({"mask": [[], None]}, "row 0 has 0 mask, but length asks for 2"),
        ({"log_probs": [None, []]}, "row 1 has 0 log_probs, but length asks for 1"),
        ({"offsets": [[0, 1], None]}, "row 0 has 2 offsets, but length asks for 3"),
        ({"tokens": [[1, 2], None], "length": [2, 0]}, "tokens is null in 1 rows"),
        ({"response_length": [3, 0]}, "row 0 has response_length 3, but length 2"),
        ({"response_length": [2, -1]}, "row 1 has response_length -1, but length 1"),
    ],
)
def test_rows_that_disagree_with_themselves_are_refused_on_write_and_on_read(
    shard: Path, tmp_path: Path, columns: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint) as on_write:
        written(tmp_path / "new.parquet", tiny(**columns))

    for name, values in columns.items():
        rewritten(shard, changed(name, values))
    with pytest.raises(DataError, match=complaint) as on_read:
        read_shard(shard, TINY)

    assert (on_write.value.exit_code, on_read.value.exit_code) == (65, 65)


def test_unknown_and_missing_columns_are_refused_on_write(tmp_path: Path) -> None:
    short = tiny()
    del short["mask"]
    with pytest.raises(DataError, match="other columns than these: reward"):
        written(tmp_path / "new.parquet", tiny(reward=[0.0, 1.0]))
    with pytest.raises(DataError, match="other columns than these: mask"):
        written(tmp_path / "new.parquet", short)


def test_unknown_missing_and_retyped_columns_are_refused_on_read(shard: Path) -> None:
    original = shard.read_bytes()
    for change, name in [
        (lambda table: table.append_column("reward", pa.array([0.0, 1.0])), "reward"),
        (lambda table: table.drop_columns(["mask"]), "mask"),
        (lambda table: table.set_column(1, "length", pa.array([2, 1], pa.int64())), "length"),
    ]:
        shard.write_bytes(original)
        rewritten(shard, change)
        with pytest.raises(DataError, match=f"other columns or types than a tiny shard: {name}"):
            read_shard(shard, TINY)


@pytest.mark.parametrize("kept", [0, 3, 4, 100, -9, -1])
def test_a_truncated_file_is_refused(shard: Path, kept: int) -> None:
    data = shard.read_bytes()
    shard.write_bytes(data[:kept])

    with pytest.raises(DataError, match="truncated or was altered") as caught:
        read_shard(shard, TINY)

    assert caught.value.exit_code == 65


def test_a_file_with_a_hole_in_its_data_is_refused(tmp_path: Path) -> None:
    rows = 2000
    path = written(
        tmp_path / "tiny.parquet",
        tiny(
            tokens=[[row, row * 7] for row in range(rows)],
            length=[2] * rows,
            mask=[None] * rows,
            log_probs=[None] * rows,
            offsets=[None] * rows,
            status=["completed"] * rows,
            response_length=[0] * rows,
        ),
    )
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes(2000) + data[2200:])

    with pytest.raises(DataError, match="truncated or was altered"):
        read_shard(path, TINY)


def test_a_file_of_another_kind_a_newer_version_or_no_kind_is_refused(shard: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="kind 'tiny', version 2; this needs 'reward', version 1"):
        read_shard(shard, REWARD)

    rewritten(shard, lambda table: table, **{"slime_stages.schema_version": "3"})
    with pytest.raises(DataError, match="kind 'tiny', version 3; this needs 'tiny', version 2"):
        read_shard(shard, TINY)

    pq.write_table(pa.table({"tokens": [[1]]}), tmp_path / "foreign.parquet")
    with pytest.raises(DataError, match="kind 'unknown', version unknown"):
        read_shard(tmp_path / "foreign.parquet", TINY)


def test_a_missing_file_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"there is no shard .*absent.parquet") as caught:
        read_shard(tmp_path / "absent.parquet", TINY)

    assert caught.value.exit_code == 66


def test_lists_become_one_flat_buffer_with_nulls_apart_from_empty_rows() -> None:
    array = list_array([[1, 2], None, [], np.array([3])], TOKENS)

    assert array.to_pylist() == [[1, 2], None, [], [3]]
    assert array.values.to_pylist() == [1, 2, 3]


def test_flat_lists_join_chunks_and_treat_null_rows_as_empty() -> None:
    chunks = pa.chunked_array([list_array([[1, 2], None], TOKENS), list_array([[3]], TOKENS).slice(0, 1)])

    values, offsets = flat_lists(chunks)

    assert (values.tolist(), offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 3])
    assert (values.dtype, offsets.dtype) == (np.dtype(np.int32), np.dtype(np.int64))


def test_flat_lists_of_a_slice_leave_out_the_rest() -> None:
    values, offsets = flat_lists(pa.chunked_array([list_array([[1], [2, 3], [4]], TOKENS).slice(1, 1)]))

    assert (values.tolist(), offsets.tolist()) == ([2, 3], [0, 2])


def test_more_numbers_than_a_list_column_can_hold_are_refused() -> None:
    class Long(list[int]):
        def __len__(self) -> int:
            return 2**30

    with pytest.raises(DataError, match="2 rows hold 2147483648 numbers, too many for one write"):
        list_array([Long(), Long()], TOKENS)


def test_arrow_arrays_are_taken_as_columns() -> None:
    table = build_table(TINY, tiny(length=pa.array([2, 1], pa.int64()), status=pa.array(["completed", "failed"])))

    assert table.schema == TINY.arrow
    assert table.to_pydict() == tiny()


def test_token_and_log_prob_columns_have_their_encodings_and_only_enums_have_a_dictionary(shard: Path) -> None:
    group = pq.ParquetFile(shard).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}

    assert "DELTA_BINARY_PACKED" in columns["tokens.list.element"].encodings
    assert "BYTE_STREAM_SPLIT" in columns["log_probs.list.element"].encodings
    assert columns["status"].has_dictionary_page
    assert not columns["mask.list.element"].has_dictionary_page
    assert columns["length"].statistics.max == 2
    text = [name for name, column in columns.items() if column.compression == "ZSTD"]
    assert text == [c.name for c in TINY.columns if c.type == pa.string()]
    assert {column.compression for name, column in columns.items() if name not in text} == {"LZ4"}


def test_the_columns_of_a_sample_are_those_of_the_schema() -> None:
    assert sorted(sample_columns([Sample()], iteration=0, shard=0, split="train")) == sorted(ROLLOUT.names)

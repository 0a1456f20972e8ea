"""Parquet shards: writing and reading tables whose schema is declared, with every row's lengths checked.

Files open in DuckDB, pandas, Polars and `datasets` without us. A reader of ours also refuses another kind, a newer
schema version, a missing or unknown column, and a truncated file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from slime_stages.errors import DataError, MissingInputError
from slime_stages.schema import ENUM, LOG_PROBS, ShardSchema

ROWS_PER_GROUP = 512
KIND, VERSION = b"slime_stages.kind", b"slime_stages.schema_version"


class ShardWriter:
    """Writes one shard, a row group at a time. Use as a context manager."""

    def __init__(self, path: Path, schema: ShardSchema, metadata: dict[str, str] | None = None) -> None:
        self.rows = 0
        self._schema = schema
        stamped = {KIND: schema.kind, VERSION: str(schema.version), **(metadata or {})}
        arrow = schema.arrow.with_metadata(stamped)
        floats = [f"{c.name}.list.element" for c in schema.columns if c.type == LOG_PROBS]
        self._writer = pq.ParquetWriter(
            path,
            arrow,
            compression="zstd",
            compression_level=1,
            use_dictionary=[c.name for c in schema.columns if c.type == ENUM],
            column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
            write_statistics=[c.name for c in schema.columns if not pa.types.is_nested(c.type)],
        )
        self._arrow = arrow

    def write(self, columns: dict[str, Any]) -> None:
        """Write rows given as columns: Arrow arrays, or sequences where the type needs no care for speed.

        DataError if columns are missing or unknown, or if a row's lengths disagree.
        """
        table = build_table(self._schema, columns).cast(self._arrow)
        self.rows += len(table)
        self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def build_table(schema: ShardSchema, columns: dict[str, Any]) -> pa.Table:
    """A table of exactly the schema's columns. Arrow itself would drop unknown ones without a word."""
    if columns.keys() != set(schema.names):
        odd = sorted(columns.keys() ^ set(schema.names))
        raise DataError(f"a {schema.kind} shard has other columns than these: {', '.join(odd)}")
    arrays = [_as_array(columns[c.name], c.type) for c in schema.columns]
    table = pa.table(arrays, schema=schema.arrow)
    check_table(table, schema, where="rows to write")
    return table


def list_array(rows: Sequence[Sequence[Any] | NDArray[Any] | None], type_: pa.DataType) -> pa.ListArray:
    """A list column from rows, through one flat numpy array: ten times as fast as from Python numbers one by one."""
    dtype = type_.value_type.to_pandas_dtype()
    lengths = np.fromiter((0 if row is None else len(row) for row in rows), np.int64, len(rows))
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = np.empty(int(offsets[-1]), dtype)
    for row, start, stop in zip(rows, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if row is not None:
            flat[start:stop] = row
    mask = np.fromiter((row is None for row in rows), bool, len(rows))
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(flat), type=type_, mask=pa.array(mask) if mask.any() else None
    )


def read_shard(path: Path, schema: ShardSchema, columns: Sequence[str] | None = None) -> pa.Table:
    """Read and check a whole shard, or some of its columns.

    DataError for a file that is truncated, of another kind or version, or whose rows disagree with themselves.
    """
    with open_shard(path, schema) as file:
        try:
            table = file.read(columns=list(columns) if columns is not None else None)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, error) from error
    check_table(table, schema, where=str(path))
    return table


def read_batches(path: Path, schema: ShardSchema) -> Iterator[pa.Table]:
    """Read a shard one row group at a time, in bounded memory."""
    with open_shard(path, schema) as file:
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error
            check_table(table, schema, where=f"{path}, row group {group}")
            yield table


def open_shard(path: Path, schema: ShardSchema) -> pq.ParquetFile:
    """Open a shard after a look at its footer: kind, schema version and columns are the declared ones."""
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise MissingInputError(f"there is no shard {path}") from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    stamped = file.schema_arrow.metadata or {}
    kind, version = stamped.get(KIND, b"").decode(), stamped.get(VERSION, b"0").decode()
    if kind != schema.kind or int(version) != schema.version:
        raise DataError(
            f"{path} is a shard of kind {kind or 'unknown'!r}, version {version}; "
            f"this needs {schema.kind!r}, version {schema.version}",
        )
    if set(file.schema_arrow.names) != set(schema.names):
        odd = sorted(set(file.schema_arrow.names) ^ set(schema.names))
        raise DataError(f"{path} has other columns than a {schema.kind} shard: {', '.join(odd)}")
    return file


def check_table(table: pa.Table, schema: ShardSchema, *, where: str) -> None:
    """DataError at the first null that must not be one, and at the first row whose list has the wrong length."""
    for declared in schema.columns:
        if declared.name in table.column_names and not declared.nullable and table[declared.name].null_count:
            raise DataError(f"{where}: {declared.name} is null in {table[declared.name].null_count} rows")
    for name, (length_name, plus) in schema.parallel.items():
        if name not in table.column_names or length_name not in table.column_names:
            continue
        wanted = table[length_name].to_numpy() + plus
        for row, have in wrong_lengths(table[name], wanted):
            raise DataError(f"{where}: row {row} has {have} {name}, but {length_name} asks for {wanted[row]}")


def wrong_lengths(lists: pa.ChunkedArray, wanted: NDArray[Any]) -> Iterable[tuple[int, int]]:
    """(row, length) of rows that are given and whose length is not the wanted one."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy()
    rows = np.flatnonzero((lengths >= 0) & (lengths != wanted))
    return zip(rows.tolist(), lengths[rows].tolist(), strict=True)


def _as_array(values: Any, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(type_) if values.type != type_ else values
    if pa.types.is_list(type_) and type_.value_type != pa.string() and type_.value_type != pa.binary():
        return list_array(values, type_)
    if type_ == ENUM:
        return pa.array(values, pa.string()).dictionary_encode().cast(ENUM)
    return pa.array(values, type_)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as Parquet ({error}); it is truncated or was altered")

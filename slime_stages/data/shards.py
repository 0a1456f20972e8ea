"""Parquet shards: writing and reading tables whose schema is declared, with every row's lengths checked.

Files open in DuckDB, pandas, Polars and `datasets` without us. A reader of ours also refuses another kind, a newer
schema version, a missing or unknown column, and a truncated file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from slime_stages.data.schema import ENUM, LOG_PROBS, MASK, PAYLOADS, STRINGS, TOKENS, Column, ShardSchema
from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.commit import retryable_full_disk

ROWS_PER_GROUP = 512
ENCODINGS = {TOKENS: "DELTA_BINARY_PACKED", LOG_PROBS: "BYTE_STREAM_SPLIT"}
"""Smaller than plain. Old DuckDB releases know the second one for floats only."""
NUMBERS_CODEC, TEXT_CODEC = "lz4", "zstd"
"""zstd would take 5 % off the encoded numbers and cost a quarter more of the time that encoding takes."""
KIND, VERSION = "slime_stages.kind", "slime_stages.schema_version"


class ShardWriter:
    """Writes one shard, a row group at a time. Use as a context manager.

    A thread encodes and compresses one table while the caller makes the next.
    """

    def __init__(self, path: Path, schema: ShardSchema, metadata: dict[str, str] | None = None) -> None:
        self.rows = 0
        self._path = path
        self._schema = schema
        stamped = {KIND: schema.kind, VERSION: str(schema.version), **(metadata or {})}
        arrow = schema.arrow.with_metadata(stamped)
        encodings = {_leaf(c): ENCODINGS[c.type] for c in schema.columns if c.type in ENCODINGS}
        self._writer = pq.ParquetWriter(
            path,
            arrow,
            compression={_leaf(c): TEXT_CODEC if _is_text(c) else NUMBERS_CODEC for c in schema.columns},
            compression_level={_leaf(c): 1 for c in schema.columns if _is_text(c)},
            use_dictionary=[c.name for c in schema.columns if c.type == ENUM],
            column_encoding=encodings,
            write_statistics=[c.name for c in schema.columns if pa.types.is_primitive(c.type)],
        )
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def write(self, columns: dict[str, Any]) -> None:
        """Write rows given as columns: Arrow arrays, or sequences where the type needs no care for speed.

        DataError if columns are missing or unknown, if a value does not fit, or if a row's lengths disagree.
        """
        table = build_table(self._schema, columns)
        self.rows += len(table)
        self._finish_pending()
        begun = Event()
        self._pending = self._thread.submit(self._encode, table, begun)
        begun.wait()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish_pending()
        finally:
            self._thread.shutdown()
            with retryable_full_disk(self._path.parent):
                self._writer.close()

    def _encode(self, table: pa.Table, begun: Event) -> None:
        """Runs in the thread. Who waits for `begun` lends it the interpreter: it would else get it 5 ms later."""
        begun.set()
        self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)

    def _finish_pending(self) -> None:
        if self._pending is not None:
            with retryable_full_disk(self._path.parent):
                self._pending.result()


def build_table(schema: ShardSchema, columns: dict[str, Any]) -> pa.Table:
    """A table of exactly the schema's columns. Arrow itself would drop unknown ones without a word."""
    if columns.keys() != set(schema.names):
        odd = sorted(columns.keys() ^ set(schema.names))
        raise DataError(f"a {schema.kind} shard has other columns than these: {', '.join(odd)}")
    arrays = [_as_array(columns[c.name], c) for c in schema.columns]
    table = pa.table(arrays, schema=schema.arrow)
    check_table(table, schema, where="rows to write")
    return table


def list_array(rows: Sequence[Sequence[Any] | NDArray[Any] | None], type_: pa.DataType) -> pa.ListArray:
    """A list column from rows of numbers, through one flat buffer. DataError if a number does not fit the type."""
    if all(row is None for row in rows):
        return pa.nulls(len(rows), type_)
    dtype = np.dtype(type_.value_type.to_pandas_dtype())
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([0 if row is None else len(row) for row in rows], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise DataError(f"{len(rows)} rows hold {offsets[-1]} numbers, too many for one write")
    flat = np.empty(offsets[-1], dtype)
    memory = flat.data.cast("B")
    for row, start in zip(rows, (offsets * dtype.itemsize).tolist(), strict=False):
        if row is not None:
            _put_numbers(memory, start, row, dtype)
    mask = np.fromiter((row is None for row in rows), bool, len(rows))
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        pa.array(flat),
        type=type_,
        mask=pa.array(mask) if mask.any() else None,
    )


def flat_lists(column: pa.ChunkedArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A list column as all its values, one after the other, and the rows' [N + 1] offsets; a null row is empty."""
    import pyarrow.compute as pc

    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(), out=offsets[1:])
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    empty = np.empty(0, column.type.value_type.to_pandas_dtype())
    return (chunks[0] if len(chunks) == 1 else np.concatenate([empty, *chunks])), offsets


def list_rows(column: pa.ChunkedArray) -> list[NDArray[Any] | None]:
    """The rows of a list column as views of one flat array; None for null."""
    flat, offsets = flat_lists(column)
    valid = column.is_valid().to_numpy()
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), valid.tolist(), strict=True)
    return [flat[start:stop] if given else None for start, stop, given in bounds]


def read_shard(path: Path, schema: ShardSchema, columns: Sequence[str] | None = None) -> pa.Table:
    """Read and check a whole shard, or some of its columns.

    DataError for a file that is truncated, of another kind or version, or whose rows disagree with themselves.
    """
    tables = list(read_batches(path, schema, columns))
    return pa.concat_tables(tables) if tables else schema.arrow.empty_table().select(columns or schema.names)


def read_batches(path: Path, schema: ShardSchema, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Read a shard one row group at a time, in bounded memory; checked as `read_shard` does."""
    with open_shard(path, schema) as file:
        for group in range(file.num_row_groups):
            yield _read_group(path, file, group, schema, columns)


def read_rows(
    path: Path, schema: ShardSchema, rows: NDArray[np.integer], columns: Sequence[str] | None = None
) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
    """Read some rows, a row group at a time, and of the file only the groups that hold them: which of `rows` they are,
    and the rows themselves. Checked as `read_shard` does, group by group."""
    with open_shard(path, schema) as file:
        counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        starts = np.append(0, np.cumsum(counts))
        if len(rows) and not 0 <= rows.min() <= rows.max() < starts[-1]:
            raise DataError(f"{path} holds {starts[-1]} rows, and no row {rows.max()}")
        group_of = np.searchsorted(starts, rows, side="right") - 1
        for group in np.unique(group_of).tolist():
            chosen = np.flatnonzero(group_of == group)
            yield chosen, _read_group(path, file, group, schema, columns).take(rows[chosen] - starts[group])


def _read_group(
    path: Path, file: pq.ParquetFile, group: int, schema: ShardSchema, columns: Sequence[str] | None
) -> pa.Table:
    try:
        table = file.read_row_group(group, columns=list(columns) if columns is not None else None)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    check_table(table, schema, where=f"{path}, row group {group}")
    return table


def open_shard(path: Path, schema: ShardSchema) -> pq.ParquetFile:
    """Open a shard after a look at its footer: kind, schema version and columns are the declared ones."""
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise MissingInputError(f"there is no shard {path}") from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    stamped = file.schema_arrow.metadata or {}
    kind, version = (stamped.get(key.encode(), b"").decode() or "unknown" for key in (KIND, VERSION))
    if kind != schema.kind or version != str(schema.version):
        raise DataError(
            f"{path} is a shard of kind {kind!r}, version {version}; "
            f"this needs {schema.kind!r}, version {schema.version}",
        )
    types = {field.name: field.type for field in file.schema_arrow}
    declared = {c.name: c.type for c in schema.columns}
    if types != declared:
        odd = sorted(name for name in types.keys() | declared.keys() if types.get(name) != declared.get(name))
        raise DataError(f"{path} has other columns or types than a {schema.kind} shard: {', '.join(odd)}")
    return file


def check_table(table: pa.Table, schema: ShardSchema, *, where: str) -> None:
    """DataError at the first null that must not be one, and at the first row whose list has the wrong length."""
    there = dict(zip(table.column_names, table.columns, strict=True))
    for declared in schema.columns:
        if not declared.nullable and declared.name in there and there[declared.name].null_count:
            raise DataError(f"{where}: {declared.name} is null in {there[declared.name].null_count} rows")
    for name, (length_name, plus) in schema.parallel.items():
        if {name, length_name} <= there.keys() and there[name].null_count < len(table):
            wanted = there[length_name].to_numpy() + plus
            for row, have in wrong_lengths(there[name], wanted):
                raise DataError(f"{where}: row {row} has {have} {name}, but {length_name} asks for {wanted[row]}")
    for name, bound in schema.at_most.items():
        if {name, bound} <= there.keys():
            small, large = there[name].to_numpy(), there[bound].to_numpy()
            for row in np.flatnonzero((small < 0) | (small > large)).tolist():
                raise DataError(f"{where}: row {row} has {name} {small[row]}, but {bound} {large[row]}")


def wrong_lengths(lists: pa.ChunkedArray, wanted: NDArray[Any]) -> Iterable[tuple[int, int]]:
    """(row, length) of rows that are given and whose length is not the wanted one."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy()
    rows = np.flatnonzero((lengths >= 0) & (lengths != wanted))
    return zip(rows.tolist(), lengths[rows].tolist(), strict=True)


def _as_array(values: Any, declared: Column) -> pa.Array | pa.ChunkedArray:
    type_ = declared.type
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values.cast(type_)
        if type_ in (TOKENS, MASK, LOG_PROBS):
            return list_array(values, type_)
        if type_ == ENUM:
            return pa.array(values, pa.string()).dictionary_encode().cast(ENUM)
        return pa.array(values, type_)
    except DataError as error:
        raise DataError(f"{declared.name}: {error.message}") from error
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{declared.name} cannot be stored as {type_}: {error}") from error


def _put_numbers(memory: memoryview, start: int, row: Sequence[Any] | NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Put the row's numbers at byte `start`. `struct` packs Python numbers three times as fast as numpy does."""
    if isinstance(row, list):
        try:
            if dtype == np.uint8:
                memory[start : start + len(row)] = bytes(row)
            else:
                struct.pack_into(f"{len(row)}{dtype.char}", memory, start, *row)
            return
        except (struct.error, TypeError, ValueError, OverflowError):
            pass  # numpy also takes numbers of other types, where they fit
    given = np.asarray(row)
    numbers = given.astype(dtype)
    if given.ndim != 1 or (dtype.kind != "f" and not np.array_equal(numbers, given)):
        raise DataError(f"a row holds values that are no {dtype}: {str(given)[:80]}")
    memory[start : start + numbers.nbytes] = numbers.tobytes()


def _leaf(declared: Column) -> str:
    """The column's path in a Parquet file."""
    return f"{declared.name}.list.element" if pa.types.is_list(declared.type) else declared.name


def _is_text(declared: Column) -> bool:
    return declared.type in (pa.string(), STRINGS, PAYLOADS)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as Parquet ({error}); it is truncated or was altered")

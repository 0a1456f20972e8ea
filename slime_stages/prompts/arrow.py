"""Rows of Parquet files and of Arrow's own files, a bounded part of the file at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from slime_stages.errors import DataError

Rows = list[dict[str, Any]]

BATCH_ROWS = 1024
BATCH_BYTES = 1 << 25
"""Rows with images are large: fewer of them are made Python objects at a time."""
FILE_MAGIC = b"ARROW1"
"""What Arrow's file format begins with; its stream format has no name."""


def read_parquet_batches(path: Path) -> Iterator[Rows]:
    """DataError for a file that is not whole."""
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            size = rows_at_once(parquet_bytes(file.metadata), file.metadata.num_rows)
            for batch in file.iter_batches(size):
                rows = batch.to_pylist()
                number += len(rows)
                yield rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet after row {number} ({error})") from error


def parquet_bytes(metadata: Any) -> int:
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))


def read_arrow_batches(path: Path) -> Iterator[Rows]:
    """Of the file format or the stream format. DataError for a file that is not whole."""
    number = 0
    try:
        for batch in arrow_batches(path):
            size = rows_at_once(batch.nbytes, batch.num_rows)
            for start in range(0, batch.num_rows, size):
                rows = batch.slice(start, size).to_pylist()
                number += len(rows)
                yield rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Arrow after row {number} ({error})") from error


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
    with pa.memory_map(str(path)) as mapped:
        if not is_file:
            yield from pa.ipc.open_stream(mapped)
            return
        reader = pa.ipc.open_file(mapped)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def rows_at_once(size: int, rows: int) -> int:
    """How many rows of a table of `size` bytes to handle together."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size)) if size else BATCH_ROWS

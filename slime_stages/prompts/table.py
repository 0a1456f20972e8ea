"""The prompt table of a run: one Parquet file, of which a reader touches the row groups and columns it needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from slime_stages.data.multimodal import multimodal_inputs
from slime_stages.data.payload import dump_json
from slime_stages.data.schema import MEDIA_PROMPTS, PROMPTS, ShardSchema
from slime_stages.data.shards import KIND, ShardWriter, check_table, open_shard
from slime_stages.errors import DataError
from slime_stages.prompts.parts import in_parts
from slime_stages.run.commit import fsync_path, written_file

WRITTEN_ROWS = 8192
WRITTEN_MEDIA_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One prompt, ready to be asked."""

    prompt_id: str
    """xxh3-128 of the source row's prompt, label, metadata and tools: the same in every run."""
    prompt: str | list[dict[str, Any]]
    """Text, chat template applied where asked for, or messages."""
    prompt_token_ids: Sequence[int] | NDArray[np.int32] | None
    """Ids of the text, without special tokens added. None for messages."""
    label: Any
    metadata: dict[str, Any]
    source: str
    """`file:line`, or `file:row`."""
    media: list[bytes] | None = None
    """Images, as their files are, in the order of their places in the prompt; None for none."""

    @property
    def media_bytes(self) -> int:
        return sum(map(len, self.media or ()))

    def multimodal_inputs(self) -> dict[str, Any] | None:
        """The images decoded, as `Sample.multimodal_inputs` has them."""
        return multimodal_inputs(self.media)


def write_prompt_table(
    path: Path, rows: Iterable[PromptRow], *, media: bool = False, metadata: dict[str, str] | None = None
) -> int:
    """Write the table in one piece; returns how many rows it has. DataError for values that JSON cannot hold.

    With `media` it has a column for images.
    """
    schema = MEDIA_PROMPTS if media else PROMPTS
    with written_file(path) as temporary, ShardWriter(temporary, schema, metadata) as writer:
        for part in in_parts(rows, WRITTEN_ROWS, lambda row: row.media_bytes, WRITTEN_MEDIA_BYTES):
            writer.write({name: values for name, values in as_columns(part).items() if name in schema.names})
    temporary.rename(path)
    fsync_path(path.parent)
    return writer.rows


def table_schema(path: Path) -> ShardSchema:
    """Which of the two kinds of prompt table a file is; the plain one if it is neither, which then refuses it."""
    try:
        found = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return PROMPTS
    return MEDIA_PROMPTS if found.get(KIND.encode()) == MEDIA_PROMPTS.kind.encode() else PROMPTS


def as_columns(rows: Sequence[PromptRow]) -> dict[str, Any]:
    return {
        "prompt_id": [row.prompt_id for row in rows],
        "prompt": [row.prompt if isinstance(row.prompt, str) else None for row in rows],
        "messages": [None if isinstance(row.prompt, str) else as_json(row.prompt, row) for row in rows],
        "prompt_token_ids": [row.prompt_token_ids for row in rows],
        "label": [None if row.label is None else as_json(row.label, row) for row in rows],
        "metadata": [as_json(row.metadata, row) for row in rows],
        "source": [row.source for row in rows],
        "media": [row.media for row in rows],
    }


def as_json(value: Any, row: PromptRow) -> str:
    return dump_json(value, what=f"{row.source}: a value")


def read_prompt_table(path: Path) -> PromptTable:
    """Open a table. MissingInputError if there is none, DataError if it is no whole prompt table."""
    return PromptTable(path)


class PromptTable:
    """A prompt table on disk. Row groups are read when a row of theirs is asked for; the last one is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._schema = table_schema(path)
        self._file = open_shard(path, self._schema)
        metadata = self._file.metadata
        sizes: list[int] = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts: list[int] = [0, *accumulate(sizes)]
        self._last_group: tuple[int, pa.Table] = (-1, None)

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> PromptRow:
        return self.rows([index])[0]

    def rows(self, indices: Sequence[int]) -> list[PromptRow]:
        """The rows of these indices, in their order, with every row group read once."""
        assert all(0 <= index < len(self) for index in indices), len(self)
        found: dict[int, PromptRow] = {}
        for group, members in groupby(sorted(set(indices)), self._group_of):
            wanted = list(members)
            places = [index - self._starts[group] for index in wanted]
            found.update(zip(wanted, as_rows(self._group(group).take(places)), strict=True))
        return [found[index] for index in indices]

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all rows, without reading the others."""
        return self._read(lambda: self._file.read(columns=[name]))[name]

    @property
    def token_counts(self) -> NDArray[np.int64]:
        """Prompt tokens of every row; -1 for messages."""
        import pyarrow.compute as pc

        counts = pc.list_value_length(self.column("prompt_token_ids"))
        return np.asarray(pc.fill_null(counts, -1), np.int64)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> PromptTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _group_of(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _group(self, group: int) -> pa.Table:
        if self._last_group[0] != group:
            self._last_group = (group, self._read(lambda: self._file.read_row_group(group)))
        return self._last_group[1]

    def _read(self, read: Any) -> pa.Table:
        try:
            table = read()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path} cannot be read as Parquet ({error}); it was altered") from error
        check_table(table, self._schema, where=str(self.path))
        return table


def as_rows(table: pa.Table) -> list[PromptRow]:
    tokens = table["prompt_token_ids"].combine_chunks()
    values = table.drop_columns("prompt_token_ids").to_pylist()
    return [as_row(row, ids_at(tokens, index)) for index, row in enumerate(values)]


def ids_at(tokens: pa.ListArray, index: int) -> NDArray[np.int32] | None:
    scalar = tokens[index]
    return scalar.values.to_numpy() if scalar.is_valid else None


def as_row(values: dict[str, Any], prompt_token_ids: NDArray[np.int32] | None) -> PromptRow:
    return PromptRow(
        prompt_id=values["prompt_id"],
        prompt=orjson.loads(values["messages"]) if values["prompt"] is None else values["prompt"],
        prompt_token_ids=prompt_token_ids,
        label=None if values["label"] is None else orjson.loads(values["label"]),
        metadata=orjson.loads(values["metadata"]),
        source=values["source"],
        media=values.get("media"),
    )

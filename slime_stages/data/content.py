"""The content digest of a shard: equal for two attempts that made the same rows, whatever their clocks say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from slime_stages.data.schema import ShardSchema
from slime_stages.data.shards import read_batches


def content_digest(path: Path, schema: ShardSchema) -> str:
    """xxh3-128 over the rows of a written shard, volatile columns left out. Reads the whole file once."""
    state = xxhash.xxh3_128()
    names = [column.name for column in schema.columns if not column.volatile]
    for table in read_batches(path, schema):
        for name in names:
            state.update(name.encode())
            _update(state, pa.concat_arrays(table[name].chunks))
    return state.hexdigest()


def _update(state: xxhash.xxh3_128, array: pa.Array) -> None:
    """Feed the values of an array, independent of how they lie in memory."""
    state.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_list(array.type):
        state.update(pc.fill_null(pc.list_value_length(array), -1).to_numpy().tobytes())
        _update(state, array.flatten())
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        state.update(pc.fill_null(pc.binary_length(array), -1).to_numpy().tobytes())
        state.update(b"".join(array.drop_null().cast(pa.binary()).to_pylist()))
    else:
        filled = pc.fill_null(array, pa.scalar(0).cast(array.type)) if array.null_count else array
        state.update(np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).tobytes())

"""Samples to the columns of a rollout shard and back, losing nothing: unknown attributes, None and [], dict rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from slime_stages.data.counters import PrefixCacheInfo, SpecInfo
from slime_stages.data.payload import dump_json, pack, unpack
from slime_stages.data.schema import ROLLOUT
from slime_stages.data.shards import ShardWriter, build_table, flat_lists, read_shard
from slime_stages.errors import DataError
from slime_stages.sample import FIELD_NAMES, Sample, Status
from slime_stages.trace.handles import dump_trace

ROWS_PER_WRITE = 512
NUMBERS_PER_WRITE = 1 << 27
"""Bounds the memory of a write; one list column cannot hold more than 2³¹ numbers at a time."""
_PLAIN = (
    "index",
    "group_index",
    "rollout_id",
    "session_id",
    "prompt_id",
    "tokens",
    "response_length",
    "loss_mask",
    "rollout_log_probs",
    "teacher_log_probs",
    "remove_sample",
    "weight_versions",
    "response",
    "generate_function_path",
    "custom_rm_path",
    "generate_seconds",
    "non_generation_time",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "multimodal_train_input_id",
)
_JSON = ("label", "metadata", "train_metadata", "apply_chat_template_kwargs", "sampling_params")
_PACKED = ("multimodal_inputs", "multimodal_train_inputs", "extra")


def write_samples(
    path: Path,
    samples: Sequence[Sample],
    *,
    iteration: int,
    shard: int,
    split: str = "train",
    metadata: dict[str, str] | None = None,
) -> None:
    """Write samples as a rollout shard, in order. DataError names the sample that cannot be stored, and why."""
    with ShardWriter(path, ROLLOUT, metadata) as writer:
        for start, stop in _writes(samples):
            rows = samples[start:stop]
            writer.write(sample_columns(rows, iteration=iteration, shard=shard, split=split, first_row=start))


def read_samples(path: Path) -> list[Sample]:
    """All samples of a rollout shard. The inverse of `write_samples`."""
    return samples_of(read_shard(path, ROLLOUT))


def sample_columns(
    samples: Sequence[Sample], *, iteration: int, shard: int, split: str, first_row: int = 0
) -> dict[str, Any]:
    """The columns of `ROLLOUT` for these samples."""
    for sample in samples:
        _check(sample)
    count = len(samples)
    columns: dict[str, Any] = {name: list(map(attrgetter(name), samples)) for name in _PLAIN}
    columns |= {name: [_json(getattr(s, name), s, name) for s in samples] for name in _JSON}
    columns |= _packed_columns(samples)
    numeric = [isinstance(s.reward, int | float | np.number) for s in samples]
    columns |= {
        "iteration": np.full(count, iteration, np.int32),
        "shard": np.full(count, shard, np.int32),
        "split": [split] * count,
        "row": np.arange(first_row, first_row + count, dtype=np.int32),
        "total_length": [len(s.tokens) for s in samples],
        "status": [Status(s.status).value for s in samples],
        "reward": [float(s.reward) if number else None for s, number in zip(samples, numeric, strict=True)],  # type: ignore[arg-type]
        "reward_parts": [None if n else _json(s.reward, s, "reward") for s, n in zip(samples, numeric, strict=True)],
        "prompt": [s.prompt if isinstance(s.prompt, str) else None for s in samples],
        "messages": [None if isinstance(s.prompt, str) else _json(s.prompt, s, "prompt") for s in samples],
        "sampling_seed": [(s.sampling_params or {}).get("sampling_seed") for s in samples],
        "spec_info": [dump_json(s.spec_info, what="spec_info") for s in samples],
        "prefix_cache_info": [dump_json(s.prefix_cache_info, what="prefix_cache_info") for s in samples],
        "trace": [dump_trace(s.trace) for s in samples],
    }
    experts = [s.rollout_routed_experts for s in samples]
    columns["rollout_routed_experts"] = [None if e is None else np.asarray(e).reshape(-1) for e in experts]
    columns["rollout_routed_experts_shape"] = [None if e is None else np.asarray(e).shape for e in experts]
    return columns


def samples_table(samples: Sequence[Sample], *, iteration: int, shard: int, split: str = "train") -> pa.Table:
    """The same rows as a table in memory."""
    return build_table(ROLLOUT, sample_columns(samples, iteration=iteration, shard=shard, split=split))


def samples_of(table: pa.Table) -> list[Sample]:
    """Samples from rows of a rollout shard."""
    columns = {name: _values(table, name) for name in table.column_names}
    return [_sample({name: values[row] for name, values in columns.items()}) for row in range(len(table))]


_ARRAYS = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts")
_LISTS = ("tokens", "loss_mask", "rollout_log_probs", "teacher_log_probs")


def _sample(row: dict[str, Any]) -> Sample:
    payloads = row["payloads"] or []
    fields = {name: row[name] for name in (*_PLAIN,)}
    fields |= {name: _loads(row[name]) for name in _JSON}
    fields |= {name: None if row[name] is None else unpack(row[name], payloads) for name in _PACKED}
    extra = fields.pop("extra")
    fields["reward"] = _loads(row["reward_parts"]) if row["reward"] is None else row["reward"]
    fields["prompt"] = row["prompt"] if row["prompt"] is not None else _loads(row["messages"])
    fields["status"] = Status(row["status"])
    fields["spec_info"] = SpecInfo(**_loads(row["spec_info"]))
    fields["prefix_cache_info"] = PrefixCacheInfo(**_loads(row["prefix_cache_info"]))
    fields["trace"] = _loads(row["trace"])
    experts = row["rollout_routed_experts"]
    fields["rollout_routed_experts"] = None if experts is None else experts.reshape(row["rollout_routed_experts_shape"])
    sample = Sample(**fields)
    for name, value in extra.items():
        setattr(sample, name, value)
    return sample


def _packed_columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in (*_PACKED, "payloads")}
    for sample in samples:
        payloads: list[bytes] = []
        for name in _PACKED[:2]:
            value = getattr(sample, name)
            packed = None if value is None else pack(value, payloads, what=f"{name} of sample {sample.index}")
            columns[name].append(packed)
        columns["extra"].append(_packed_extra(sample, payloads))
        columns["payloads"].append(payloads or None)
    return columns


def _packed_extra(sample: Sample, payloads: list[bytes]) -> str:
    """The attributes that are no field of `Sample`."""
    if vars(sample).keys() == FIELD_NAMES:
        return "{}"
    extra = {name: value for name, value in vars(sample).items() if name not in FIELD_NAMES}
    return pack(extra, payloads, what=f"extra of sample {sample.index}")


def _check(sample: Sample) -> None:
    try:
        sample.check_lengths()
    except ValueError as error:
        raise DataError(f"sample {sample.index} of group {sample.group_index}: {error}") from error


def _json(value: Any, sample: Sample, name: str) -> str | None:
    return None if value is None else dump_json(value, what=f"{name} of sample {sample.index}")


def _loads(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _values(table: pa.Table, name: str) -> list[Any]:
    """A column as Python values, number lists and arrays through one flat buffer."""
    column = table[name]
    if name not in _ARRAYS and name not in _LISTS:
        return column.to_pylist()  # type: ignore[no-any-return]
    flat, offsets = flat_lists(column)
    values = flat.tolist() if name in _LISTS else flat
    bounds = offsets.tolist()
    given = column.is_valid().to_pylist()
    return [
        values[start:stop] if there else None for start, stop, there in zip(bounds[:-1], bounds[1:], given, strict=True)
    ]


def _writes(samples: Sequence[Sample]) -> Iterator[tuple[int, int]]:
    """Slices of at most `ROWS_PER_WRITE` samples, fewer where they are huge."""
    start = numbers = 0
    for stop, sample in enumerate(samples):
        arrays = [np.size(a) for name in _ARRAYS if (a := getattr(sample, name)) is not None]
        size = max(len(sample.tokens), *arrays) if arrays else len(sample.tokens)
        if stop - start == ROWS_PER_WRITE or (numbers + size > NUMBERS_PER_WRITE and stop > start):
            yield start, stop
            start, numbers = stop, 0
        numbers += size
    if len(samples) > start:
        yield start, len(samples)

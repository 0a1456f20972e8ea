"""What functions that log make of many numbers."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slime_stages.passrate import pass_rates

COMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "zlib": zlib.compress,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "lzma": lambda data, level: lzma.compress(data, preset=level),
}
LOOKED_AT = 10_000
"""Characters at the end of a text; a shorter text is too short to say."""
REPEATS = 10.0
"""A text that shrinks to less than a tenth says the same again and again."""


def dict_add_prefix(d: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in d.items()}


def compute_statistics(values: Sequence[float]) -> dict[str, float]:
    numbers = np.asarray(values, np.float64)
    functions: dict[str, Callable[[Any], Any]] = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min}
    return {name: float(function(numbers)) for name, function in functions.items()}


def compute_pass_rate(
    flat_rewards: Sequence[float],
    group_size: int,
    num_groups: int | None = None,
    group_ids: Sequence[Any] | None = None,
) -> dict[str, float]:
    """pass@1, pass@2, pass@4 … of samples that stand group by group, or say which group they are of."""
    count = len(flat_rewards)
    if group_size == 1 or not count:
        return {}
    if group_ids is None and count != (num_groups or count // group_size) * group_size:
        raise ValueError(f"{count} rewards are not {num_groups} groups of {group_size}")
    known: dict[Any, int] = {}
    ids = group_ids if group_ids is not None else [number // group_size for number in range(count)]
    return pass_rates(flat_rewards, [known.setdefault(each, len(known)) for each in ids], np.arange(count))


def compression_ratio(
    data: str | bytes, *, encoding: str = "utf-8", algorithm: str = "zlib", level: int = 9
) -> tuple[float, float]:
    """How many times smaller a text can be written, and what that saves in per cent."""
    raw = data.encode(encoding) if isinstance(data, str) else data
    if not raw:
        return float("inf"), 0.0
    if algorithm not in COMPRESSORS:
        raise ValueError(f"{algorithm!r} is none of {', '.join(COMPRESSORS)}")
    length = len(COMPRESSORS[algorithm](raw, level))
    return len(raw) / length, 100.0 * (1 - length / len(raw))


def has_repetition(text: str) -> bool:
    return len(text) > LOOKED_AT and compression_ratio(text[-LOOKED_AT:])[0] > REPEATS


def compute_rollout_step(args: Any, rollout_id: int) -> int:
    """The step to log an iteration's samples under."""
    if not args.wandb_always_use_train_step:
        return rollout_id
    return int(rollout_id * args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size)

"""Samples into a shard and out again, and what it means that they are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slime_stages.data.sample_table import read_samples, write_samples
from slime_stages.sample import Sample


def stored(folder: Path, *samples: Sample) -> list[Sample]:
    path = folder / "shard.parquet"
    write_samples(path, samples, iteration=3, shard=1)
    return read_samples(path)


def assert_same(found: Sample, expected: Sample) -> None:
    assert vars(found).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        _assert_equal(getattr(found, name), value, name)


def _assert_equal(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), name
        for key, value in expected.items():
            _assert_equal(found[key], value, f"{name}.{key}")
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)
    else:
        assert found == expected, name
        assert type(found) is type(expected), name

"""What a shard costs beside JSONL, msgpack and pickle: write and read speed, and bytes per token, on the same samples.

    python benchmarks/shards.py --samples 2048 --mean-tokens 1024

All sides start from the same list of `Sample` with Python lists, as generate functions leave them, and end at what
training needs: flat numpy arrays of tokens, masks and log-probs with the rows' offsets. Best of nine rounds; a round
measures each format in turn. Files go to a temporary folder and are read from the page cache: no disk is measured.
Text columns are empty; text costs every format the same characters. Writing a shard keeps two cores busy, one with
Python numbers and one with Parquet: the processor's time is printed beside the clock's.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import orjson
from numpy.typing import NDArray

from slime_stages.data.sample_table import write_samples
from slime_stages.data.schema import ROLLOUT
from slime_stages.data.shards import flat_lists, read_shard
from slime_stages.sample import Sample, Status

ROUNDS = 9
VOCABULARY = 151_936
DTYPES: dict[str, Any] = {"tokens": np.int32, "loss_mask": np.uint8, "rollout_log_probs": np.float32}
Flat = dict[str, tuple[NDArray[Any], NDArray[np.int64]]]
"""Column → (all its values one after the other, [rows + 1] offsets)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way to store samples."""

    name: str
    write: Callable[[Path, list[Sample]], None]
    read: Callable[[Path], Flat]


class Figures(NamedTuple):
    """What a format costs."""

    write_seconds: float
    write_cpu_seconds: float
    read_seconds: float
    bytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description="speed and size of shards beside JSONL, msgpack and pickle")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--mean-tokens", type=int, default=1024, help="prompt and response")
    args = parser.parse_args()

    samples = make_samples(args.samples, args.mean_tokens)
    tokens = sum(len(sample.tokens) for sample in samples)
    print(f"{len(samples)} samples, {tokens / 1e6:.2f} million tokens, best of {ROUNDS}\n")
    with tempfile.TemporaryDirectory() as folder:
        print_figures(measure(Path(folder), samples), tokens)


def make_samples(count: int, mean_tokens: int) -> list[Sample]:
    """Zipf tokens over the vocabulary, float32 log-probs as an engine's JSON gives them, masked tool output."""
    random = np.random.default_rng(0)
    ids = random.permutation(VOCABULARY)
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    shares /= shares[-1]
    return [_sample(random, index, mean_tokens, ids, shares) for index in range(count)]


def measure(folder: Path, samples: list[Sample]) -> dict[str, Figures]:
    """Format → the best of its rounds."""
    best: dict[str, Figures] = {}
    expected = flat_of([vars(sample) for sample in samples])
    for _ in range(ROUNDS):
        for format_ in FORMATS:
            path = folder / format_.name
            write_seconds, write_cpu_seconds, _ = _timed(partial(format_.write, path, samples))
            read_seconds, _, flat = _timed(partial(format_.read, path))
            _check(flat, expected, format_.name)
            figures = Figures(write_seconds, write_cpu_seconds, read_seconds, path.stat().st_size)
            known = best.get(format_.name, figures)
            best[format_.name] = Figures(*(min(pair) for pair in zip(figures, known, strict=True)))
            path.unlink()
    return best


def print_figures(best: dict[str, Figures], tokens: int) -> None:
    shard = best["shard"]
    titles = f"{'Mtoken/s':8} {'write':>8} {'of CPU':>8} {'read':>8} {'bytes/token':>12}"
    print(f"{titles}   shard's: write, of CPU, read, size")
    for name, figures in best.items():
        speeds = " ".join(f"{tokens / seconds / 1e6:8.1f}" for seconds in figures[:3])
        ratios = ", ".join(f"{other / own:.1f}×" for other, own in zip(figures[:3], shard[:3], strict=True))
        size = f"{shard.bytes / figures.bytes:.2f}"
        print(f"{name:8} {speeds} {figures.bytes / tokens:12.2f}   {ratios}, {size}")


def write_shard(path: Path, samples: list[Sample]) -> None:
    write_samples(path, samples, iteration=0, shard=0)


def read_shard_flat(path: Path) -> Flat:
    table = read_shard(path, ROLLOUT, columns=["total_length", "response_length", *DTYPES])
    return {name: flat_lists(table[name]) for name in DTYPES}


def write_jsonl(path: Path, samples: list[Sample]) -> None:
    with path.open("wb") as file:
        for sample in samples:
            file.write(orjson.dumps(sample.to_dict(), option=orjson.OPT_APPEND_NEWLINE))


def read_jsonl(path: Path) -> Flat:
    with path.open("rb") as file:
        return flat_of([orjson.loads(line) for line in file])


def write_msgpack(path: Path, samples: list[Sample]) -> None:
    packer = msgpack.Packer()
    with path.open("wb") as file:
        for sample in samples:
            file.write(packer.pack(sample.to_dict()))


def read_msgpack(path: Path) -> Flat:
    with path.open("rb") as file:
        return flat_of(list(msgpack.Unpacker(file)))


def write_pickle(path: Path, samples: list[Sample]) -> None:
    with path.open("wb") as file:
        pickle.dump([sample.to_dict() for sample in samples], file, protocol=pickle.HIGHEST_PROTOCOL)


def read_pickle(path: Path) -> Flat:
    with path.open("rb") as file:
        return flat_of(pickle.load(file))


def flat_of(rows: list[dict[str, Any]]) -> Flat:
    """The arrays that training needs, from rows of Python lists."""
    return {name: _flattened([row[name] for row in rows], dtype) for name, dtype in DTYPES.items()}


FORMATS = (
    Format(name="shard", write=write_shard, read=read_shard_flat),
    Format(name="jsonl", write=write_jsonl, read=read_jsonl),
    Format(name="msgpack", write=write_msgpack, read=read_msgpack),
    Format(name="pickle", write=write_pickle, read=read_pickle),
)


def _flattened(lists: list[list[Any]], dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=offsets[1:])
    return np.fromiter(_chained(lists), dtype, int(offsets[-1])), offsets


def _chained(lists: list[list[Any]]) -> Iterable[Any]:
    return chain.from_iterable(lists)


def _sample(
    random: np.random.Generator, index: int, mean_tokens: int, ids: NDArray[Any], shares: NDArray[Any]
) -> Sample:
    prompt_length = max(1, mean_tokens // 8)
    length = int(random.integers(mean_tokens // 2, mean_tokens + mean_tokens // 2)) - prompt_length
    tokens = ids[np.searchsorted(shares, random.random(prompt_length + length))]
    log_probs = -random.exponential(0.5, length).astype(np.float32)
    mask = np.ones(length, np.int64)
    start = int(random.integers(0, length))
    mask[start : start + length // 10] = 0
    return Sample(
        index=index,
        group_index=index // 8,
        tokens=tokens.tolist(),
        response_length=length,
        loss_mask=mask.tolist(),
        rollout_log_probs=np.where(mask, log_probs, np.float32(0)).tolist(),
        reward=float(index % 2),
        status=Status.COMPLETED,
        weight_versions=["1"],
        metadata={"source_name": "benchmark"},
        sampling_params={"temperature": 1.0, "sampling_seed": index},
    )


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(clock seconds, processor seconds of all threads, result)"""
    gc.collect()
    started, used = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - started, time.process_time() - used, result


def _check(found: Flat, expected: Flat, name: str) -> None:
    for column, (values, offsets) in expected.items():
        assert np.array_equal(found[column][0], values), f"{name} altered {column}"
        assert np.array_equal(found[column][1], offsets), f"{name} altered the lengths of {column}"


if __name__ == "__main__":
    main()

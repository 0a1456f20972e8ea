"""Whether an iteration's files have changed, by their sizes and times alone: none is opened.

A closer look asks for every file. The other one leaves data files out, which are most of the work, and on a parallel
file system the dear part of it: one that is published, removed or replaced moves the time of its folder. What it does
not see is a data file that was cut or written to in its place, which nothing of ours ever does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from slime_stages.run.digest import digest_json
from slime_stages.run.rundir import RunDir

SLOW_SECONDS = 0.02
"""Looks at one iteration's files that take longer than this wait for a network: then many look at once."""
SLOW_LOOKS = 5
"""So many in succession: a single one may have waited for a processor."""
LOOKERS = 16

Part = tuple[int, str]
"""(iteration, split)."""
Result = TypeVar("Result")


class Look:
    """Size and time of the last change of files, of their folders too; -1, -1 for what is not there.

    Any change of a file, also one that puts its time of modification back, moves its `ctime`.
    """

    def __init__(self, run: RunDir, part: Part, shards: int, *, at_data: bool) -> None:
        self._values: list[int] = []
        for folder, manifests, data in _places(run, part, shards):
            self._add(folder, data if at_data else manifests)

    @property
    def digest(self) -> str:
        return digest_json(self._values)

    @property
    def last_change(self) -> int:
        """Unix time in nanoseconds."""
        return max(self._values[1::2], default=-1)

    def _add(self, folder: str, names: Sequence[str]) -> None:
        values, stat = self._values, os.stat
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            values += (-1, -1) * len(names)
            return
        for name in names:
            try:
                status = stat(name, dir_fd=descriptor)
                values += (status.st_size, status.st_ctime_ns)
            except OSError:
                values += (-1, -1)
        os.close(descriptor)


def _places(run: RunDir, part: Part, shards: int) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """(folder, its manifests, its data files) of all that the states of an iteration depend on."""
    base = folder_of(run, part)
    yield f"{run.root}/weights/000000", ("weights.json",), ()
    yield base, ("plan.json", "reward.json"), ()
    for stage in ("rollout", "reward"):
        yield f"{base}/{stage}", *_shard_names(shards)
    if part[1] == "train":
        yield f"{base}/train", (".", "manifest.json"), ("samples.parquet",)
        yield f"{base}/sync", ("manifest.json",), ()


@lru_cache
def _shard_names(shards: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    stems = [f"shard-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    return (".", *(f"{stem}.json" for stem in stems)), tuple(f"{stem}.parquet" for stem in stems)


def folder_of(run: RunDir, part: Part) -> str:
    """Where the iteration, or the evaluation, lies."""
    iteration, split = part
    return str(run.iteration_path(iteration) if split == "train" else run.plan_path(iteration, split).parent)


def for_each(parts: Iterable[Part], work: Callable[[Part], Result]) -> dict[Part, Result]:
    """What the work gives for each part: one after the other, or many at once where they wait for a network."""
    rest, results, slow_count = iter(parts), {}, 0
    for part in rest:
        waited = time.monotonic() - time.thread_time()
        results[part] = work(part)
        slow_count = slow_count + 1 if time.monotonic() - time.thread_time() - waited > SLOW_SECONDS else 0
        if slow_count == SLOW_LOOKS:
            break
    if others := list(rest):
        with ThreadPoolExecutor(LOOKERS) as pool:
            results.update(zip(others, pool.map(work, others), strict=True))
    return results

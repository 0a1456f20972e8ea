"""The journal of a shard in the making: groups, appended as they come, for the attempt after a kill.

One file an attempt, an Arrow stream of `ROLLOUT` rows with one record batch a group. What is found out about a group
later, such as its rewards, follows as a batch without rows, and so does the time at which generating began. A torn tail
is left unread. Groups are on the disk once they are appended; the rest, which can be found out again, may follow later.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from slime_stages.data.sample_table import samples_of, samples_table
from slime_stages.data.schema import ROLLOUT
from slime_stages.run.commit import TEMPORARY_PREFIX, retryable_full_disk, temporary_name
from slime_stages.sample import Sample

GroupKey = tuple[int | None, int | None]
"""Number of the group, and of its first sample."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One group of a journal."""

    samples: list[Sample]
    is_finished: bool
    note: dict[str, Any] | None = None
    """What was found out about it."""

    def tells_more_than(self, other: Entry) -> bool:
        """Whether it is further on; of two finished ones neither is."""
        if other.is_finished or self.is_finished:
            return not other.is_finished
        return self._token_count > other._token_count

    @property
    def _token_count(self) -> int:
        return sum(len(sample.tokens) for sample in self.samples)


class Journal:
    """Append-only record of finished groups. Use as a context manager; `discard` once the shard is committed."""

    def __init__(self, folder: Path, *, iteration: int, shard: int, fingerprint: str) -> None:
        """`fingerprint` names all that the samples depend on: a journal with another one is not taken up."""
        self._folder = folder
        self._iteration, self._shard = iteration, shard
        self._fingerprint = fingerprint
        self._writing = threading.Lock()

    def entries(self) -> list[Entry]:
        """Groups that earlier attempts have left, each once: finished if it ever was, else as far as it came."""
        found: dict[GroupKey, Entry] = {}
        notes: dict[GroupKey, dict[str, Any]] = {}
        for path in sorted(self._folder.glob("*.arrows")):
            for batch, about in self._batches(path):
                if "began" in about:
                    continue
                if not len(batch):
                    notes.setdefault((about["group"][0], about["group"][1]), about["note"])
                    continue
                entry = Entry(samples=_samples_in(batch), is_finished=not about.get("unfinished"))
                key = _key(entry.samples)
                if key not in found or entry.tells_more_than(found[key]):
                    found[key] = entry
        for key, note in notes.items():
            if key in found:
                found[key].note = note
        return list(found.values())

    def finished_groups(self) -> list[list[Sample]]:
        """Groups that earlier attempts finished, each once."""
        return [entry.samples for entry in self.entries() if entry.is_finished]

    def group_count(self, *, before: float = inf) -> int:
        """How many finished groups there are, without reading all of them; were, at a Unix time in the past."""
        found = set()
        for path in self._folder.glob("*.arrows"):
            if path.stat().st_mtime > before:
                continue
            for batch, about in self._batches(path):
                if len(batch) and not about.get("unfinished"):
                    found.add((batch["group_index"][0].as_py(), batch["index"][0].as_py()))
        return len(found)

    def seconds(self) -> float:
        """For which earlier attempts have generated, as far as they left a sign of it; at the same time counts once."""
        attempts = []
        for path in self._folder.glob("*.arrows"):
            last = path.stat().st_mtime
            attempts += [(about["began"], last) for _, about in self._batches(path) if "began" in about]
        total, end = 0.0, -inf
        for began, last in sorted(attempts):
            total += max(0.0, last - max(began, end))
            end = max(end, last)
        return total

    def begin(self) -> None:
        """Record that generating begins now."""
        self._write_about({"began": time.time()})

    def append(self, group: Sequence[Sample], *, is_finished: bool = True) -> None:
        """Record one group; it survives a kill from here on. One that is not finished may come again, further on."""
        assert group, "a group has samples"
        table = samples_table(group, iteration=self._iteration, shard=self._shard)
        [batch] = table.combine_chunks().to_batches()
        self._write(batch, {} if is_finished else {"unfinished": True})
        with retryable_full_disk(self._folder):
            os.fsync(self._raw.fileno())

    async def append_beside(self, group: Sequence[Sample]) -> float:
        """The same for a finished group, in a thread: a disk may take long. The journal is closed only behind it.

        Returns the seconds that it took, without those that it waited for others.
        """

        def timed() -> float:
            started = time.monotonic()
            self.append(group)
            return time.monotonic() - started

        return await asyncio.get_running_loop().run_in_executor(self._writer, timed)

    def note(self, group: Sequence[Sample], note: dict[str, Any]) -> None:
        """Record what was found out about a group that was appended; the first note counts."""
        self._write_about({"group": _key(group), "note": note})

    def discard(self) -> None:
        """Delete the journal of this shard, all attempts."""
        for path in self._folder.glob("*.arrows"):
            path.unlink(missing_ok=True)
        if self._folder.exists() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def __enter__(self) -> Journal:
        self._folder.mkdir(parents=True, exist_ok=True)
        attempt = temporary_name(self._folder / "groups").name.removeprefix(TEMPORARY_PREFIX)
        self._raw = (self._folder / f"{attempt}.arrows").open("wb")
        schema = ROLLOUT.arrow.with_metadata({"fingerprint": self._fingerprint})
        self._stream = pa.ipc.new_stream(self._raw, schema)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._stream.close()
        self._raw.close()

    def _write(self, batch: pa.RecordBatch, about: dict[str, Any]) -> None:
        with retryable_full_disk(self._folder), self._writing:
            self._stream.write_batch(batch, custom_metadata={"about": orjson.dumps(about)} if about else None)
            self._raw.flush()

    def _write_about(self, about: dict[str, Any]) -> None:
        self._write(pa.RecordBatch.from_pylist([], schema=ROLLOUT.arrow), about)

    def _batches(self, path: Path) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """Each with what is said about it."""
        try:
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                fingerprint = (stream.schema.metadata or {}).get(b"fingerprint", b"").decode()
                if fingerprint != self._fingerprint or not stream.schema.equals(ROLLOUT.arrow):
                    return
                while True:
                    batch, metadata = stream.read_next_batch_with_custom_metadata()
                    yield batch, {} if metadata is None else orjson.loads(metadata[b"about"])
        except (StopIteration, pa.ArrowException, OSError):
            pass  # the end, or the tail that a kill tore; what came before it is whole


def _key(group: Sequence[Sample]) -> GroupKey:
    return group[0].group_index, group[0].index


def _samples_in(batch: pa.RecordBatch) -> list[Sample]:
    return samples_of(pa.Table.from_batches([batch]))

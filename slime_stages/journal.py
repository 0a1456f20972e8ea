"""The journal of a shard in the making: finished groups, appended as they come, for the attempt after a kill.

One file an attempt, an Arrow stream of `ROLLOUT` rows with one record batch a group. A torn tail is left unread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import pyarrow as pa

from slime_stages.commit import TEMPORARY_PREFIX, retryable_full_disk, temporary_name
from slime_stages.sample import Sample
from slime_stages.sample_table import samples_of, samples_table
from slime_stages.schema import ROLLOUT


class Journal:
    """Append-only record of finished groups. Use as a context manager; `discard` once the shard is committed."""

    def __init__(self, folder: Path, *, iteration: int, shard: int, fingerprint: str) -> None:
        """`fingerprint` names all that the samples depend on: a journal with another one is not taken up."""
        self._folder = folder
        self._iteration, self._shard = iteration, shard
        self._fingerprint = fingerprint

    def finished_groups(self) -> list[list[Sample]]:
        """Groups that earlier attempts finished, each once."""
        groups: dict[tuple[int | None, int | None], list[Sample]] = {}
        for path in sorted(self._folder.glob("*.arrows")):
            for group in self._read(path):
                groups.setdefault((group[0].group_index, group[0].index), group)
        return list(groups.values())

    def group_count(self, *, before: float = inf) -> int:
        """How many groups `finished_groups` has, without reading all of them; had, at a Unix time in the past."""
        found = set()
        for path in self._folder.glob("*.arrows"):
            if path.stat().st_mtime > before:
                continue
            found |= {(batch["group_index"][0].as_py(), batch["index"][0].as_py()) for batch in self._batches(path)}
        return len(found)

    def append(self, group: Sequence[Sample]) -> None:
        """Record one finished group; it survives a kill from here on."""
        assert group, "a group has samples"
        with retryable_full_disk(self._folder):
            table = samples_table(group, iteration=self._iteration, shard=self._shard)
            for batch in table.combine_chunks().to_batches():
                self._stream.write_batch(batch)
            self._raw.flush()
            os.fsync(self._raw.fileno())

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
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._raw.close()

    def _read(self, path: Path) -> list[list[Sample]]:
        groups: list[list[Sample]] = []
        with suppress(pa.ArrowException):
            for batch in self._batches(path):
                groups.append(samples_of(pa.Table.from_batches([batch])))
        return groups

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        try:
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                fingerprint = (stream.schema.metadata or {}).get(b"fingerprint", b"").decode()
                if fingerprint == self._fingerprint and stream.schema.equals(ROLLOUT.arrow):
                    yield from stream
        except (pa.ArrowException, OSError):
            pass  # the tail that a kill tore; what came before it is whole

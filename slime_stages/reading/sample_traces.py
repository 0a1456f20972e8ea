"""The traces of an iteration's samples, from its shards: what the rollout recorded, and then the scoring."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import orjson

from slime_stages.data.schema import REWARD, ROLLOUT
from slime_stages.data.shards import read_batches
from slime_stages.lineage import shard_manifest_path
from slime_stages.reading.lookup import reward_manifest
from slime_stages.run.manifest import data_path, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.trace.chrome import Track
from slime_stages.trace.handles import is_trace

COLUMNS = ("row", "index", "trace")


def tracks_of(run: RunDir, plan: Plan, shards: Iterable[int], rows: Collection[tuple[int, int]] | None) -> list[Track]:
    """A track of each traced sample of these shards; of those at (shard, row) alone, if `rows` says so."""
    tracks = []
    for shard in shards:
        scoring = dict(_scoring(run, plan, shard))
        for row in _rollout_rows(run, plan, shard):
            trace = orjson.loads(row["trace"] or "null")
            if not is_trace(trace) or (rows is not None and (shard, row["row"]) not in rows):
                continue
            name = f"sample {row['index']} ({plan.iteration}/{shard}/{row['row']})"
            events = [*trace["events"], *scoring.get(row["row"], ())]
            tracks.append(Track(shard=shard, row=row["row"], name=name, events=events))
    return tracks


def _rollout_rows(run: RunDir, plan: Plan, shard: int) -> Iterator[dict[str, Any]]:
    path = shard_manifest_path(run, plan, "rollout", shard)
    for table in read_batches(data_path(path, read_manifest(path)), ROLLOUT, COLUMNS):
        yield from table.to_pylist()


def _scoring(run: RunDir, plan: Plan, shard: int) -> Iterator[tuple[int, list[Any]]]:
    """Events by row, where rewards of this rollout are there."""
    manifest = reward_manifest(run, plan, shard)
    if manifest is None:
        return
    for table in read_batches(data_path(shard_manifest_path(run, plan, "reward", shard), manifest), REWARD, COLUMNS):
        yield from ((row["row"], orjson.loads(row["trace"])) for row in table.to_pylist() if row["trace"] is not None)

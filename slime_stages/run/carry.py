"""Hand-overs between iterations: groups that a rollout shard left over, and how far it has come in its prompts.

    iterations/000012/carry/shard-00003-of-00008.parquet     groups, finished or not, in the columns of a rollout shard
    iterations/000012/rollout/shard-00003-of-00008.json      its manifest names the hand-over, with digests

issued + taken = kept + dropped + carried, for every shard; what is carried is taken by one later shard, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slime_stages.data.content import content_digest
from slime_stages.data.sample_table import read_samples, write_samples
from slime_stages.data.schema import ROLLOUT
from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.digest import digest_file, digest_json
from slime_stages.run.manifest import Manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample

STAGE = "carry"
"""Folder of the hand-overs in an iteration, and their key in a manifest's `outputs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The prompt positions that one shard asks, over its iterations, as long as their plans have the same shape.

    Where every iteration asks as many as it keeps, these are the slices of the plans. No two streams share a position.
    """

    base: int
    """Iteration that it counts from."""
    step: int
    """Iterations from one that goes on with it to the next."""
    batch: int
    """Prompts of an iteration."""
    offset: int
    """Of the shard's slice within these."""
    size: int
    """Of the slice."""

    @classmethod
    def of(cls, plan: Plan, shard: int, *, base: int) -> Stream:
        slice_, first = plan.shards[shard], plan.shards[0].start
        return cls(
            base=base,
            step=plan.stream_step or 1,
            batch=plan.shards[-1].stop - first,
            offset=slice_.start - first,
            size=slice_.stop - slice_.start,
        )

    def position(self, number: int) -> int:
        """The prompt position that comes at this number, from 0."""
        row, place = divmod(number, self.size)
        return (self.base + row * self.step) * self.batch + self.offset + place

    def number(self, position: int) -> int | None:
        """The inverse; None for a position of another stream."""
        iteration, place = divmod(position - self.offset, self.batch)
        row, rest = divmod(iteration - self.base, self.step)
        return None if rest or row < 0 or place >= self.size else row * self.size + place


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What one shard has left over, as its manifest says."""

    iteration: int
    shard: int
    path: Path
    digest: str
    """Of the file."""
    content: str
    """Of its groups and of the place in the stream: what the shard that takes it depends on."""
    stream: Stream
    next: int
    """Number of the first prompt that was not asked yet."""

    @property
    def end(self) -> int:
        """No position from here on was asked."""
        return self.stream.position(self.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """What a shard begins with."""

    taken: tuple[HandOver, ...]
    """Whose groups it takes."""
    read: tuple[HandOver, ...]
    """Whose content decides what it takes or asks."""
    stream: Stream
    first: int
    """Number of the first prompt that it asks itself."""

    @property
    def inputs(self) -> dict[str, str]:
        return {f"{STAGE}/{found.iteration:06d}/{found.shard:05d}": found.content for found in self.read}


def hand_over_of(run: RunDir, plan: Plan, shard: int, manifest: Manifest) -> HandOver:
    """DataError if the manifest names none."""
    record = manifest.outputs.get(STAGE)
    if record is None:
        raise DataError(f"the manifest of rollout {plan.iteration}/{shard} names no hand-over, as its plan wants")
    return HandOver(
        iteration=plan.iteration,
        shard=shard,
        path=run.shard_path(STAGE, plan.iteration, shard, plan.shard_count),
        digest=record["digest"],
        content=record["content"],
        stream=Stream(**record["stream"]),
        next=record["next"],
    )


def continued(plan: Plan, shard: int, before: Plan, hand_over: HandOver) -> Stream | None:
    """The stream of the shard in an iteration before, if this one can go on with it."""
    own = Stream.of(plan, shard, base=hand_over.stream.base)
    is_same = (before.shard_count, before.prompts_digest) == (plan.shard_count, plan.prompts_digest)
    return own if is_same and own == hand_over.stream else None


def begun_anew(plan: Plan, shard: int, behind: Iterable[HandOver]) -> Stream:
    """A stream beyond all that was asked; the same iteration is its base in every shard."""
    stream = Stream.of(plan, shard, base=plan.iteration)
    end = max((found.end for found in behind), default=0)
    rows = max(0, -(-end // stream.batch) - plan.iteration)
    return replace(stream, base=plan.iteration + -(-rows // stream.step) * stream.step)


def read_groups(hand_over: HandOver) -> list[list[Sample]]:
    """The groups of a hand-over, after a look that its file is the one committed."""
    path = hand_over.path
    if not path.exists():
        raise MissingInputError(f"{path} is gone, but the manifest of its shard is there")
    if (digest := digest_file(path)) != hand_over.digest:
        raise DataError(f"{path} has digest {digest}, the manifest of its shard says {hand_over.digest}")
    groups: dict[int | None, list[Sample]] = {}
    for sample in read_samples(path):
        groups.setdefault(sample.group_index, []).append(sample)
    return list(groups.values())


def write_groups(
    path: Path, groups: Sequence[Sequence[Sample]], *, plan: Plan, shard: int, stream: Stream, following: int
) -> dict[str, Any]:
    """Write the file of a hand-over under a temporary name; returns what the manifest says of it."""
    samples = [sample for group in groups for sample in group]
    write_samples(path, samples, iteration=plan.iteration, shard=shard, metadata={"run_id": plan.run_id})
    place = {"stream": asdict(stream), "next": following}
    content = digest_json([content_digest(path, ROLLOUT), place])
    return {"groups": len(groups), "rows": len(samples), "digest": digest_file(path), "content": content, **place}

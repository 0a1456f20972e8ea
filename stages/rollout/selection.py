"""Which groups a shard keeps, and what becomes of every other one: issued + taken = kept + dropped + carried.

Prompts are submitted some at a time, handed-over groups first, until enough groups are kept. Nothing here waits,
writes, or asks an engine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slime_stages.errors import DataError
from slime_stages.run.journal import Entry
from slime_stages.sample import Sample, Status
from stages.rollout.judging import Verdict

Group = list[Sample]
UNFINISHED = (Status.PENDING, Status.ABORTED)
NO_REASON = "no_reason"


@dataclass(slots=True, kw_only=True)
class Selection:
    """The groups of one shard on their way."""

    wanted: int
    """Groups of the shard."""
    enough: int
    """Kept groups at which no other is waited for."""
    chunk: int
    """Prompts submitted at a time."""
    most_refills: int
    """Submissions after the first."""
    window: int | None = None
    """Prompts that are under way at any time, however many are kept; None: no more than may be needed."""
    fresh: Callable[[int], Group]
    """The group of the shard's prompt stream with this number."""
    first: int
    """Number of the first prompt that was not asked before."""
    taken: list[Group] = field(default_factory=list)
    """Handed over, and not begun yet."""
    choose: Callable[[list[Group], int], list[Group]] = lambda buffer, count: [
        buffer.pop(0) for _ in range(min(count, len(buffer)))
    ]
    """Takes so many of the handed-over groups out of their list, at most."""
    shows_dropped: bool = False
    """Somebody wants to see dropped groups at the end; else they are not held."""

    kept: list[Group] = field(default_factory=list)
    surplus: list[Group] = field(default_factory=list)
    """Good ones beyond those that are wanted."""
    dropped: list[Group] = field(default_factory=list)
    left: list[Group] = field(default_factory=list)
    """Begun and not finished, as far as they came."""
    reasons: Counter[str] = field(default_factory=Counter)
    following: int = 0
    """Number of the next prompt to ask."""
    _taken_count: int = 0
    _ready: deque[Group] = field(default_factory=deque)
    _credit: int = 0
    """Prompts that are submitted and not begun."""
    _remaining: int = 0
    """Submitted and not dropped; kept ones stay in it."""
    _submissions: int = 0

    def __post_init__(self) -> None:
        self.following, self._taken_count = self.first, len(self.taken)

    def restore(self, entries: Sequence[Entry], number_of: Callable[[int], int | None], *, is_judged: bool) -> None:
        """Go on where earlier attempts at the shard were: `number_of` tells a position's number in the stream.

        `is_judged`: a finished group without a verdict is yet to be judged; otherwise it is kept.
        """
        of_journal = {entry.samples[0].group_index: entry for entry in entries}
        begun = [group for group in self.taken if group[0].group_index in of_journal]
        self.taken = [group for group in self.taken if group[0].group_index not in of_journal]
        names = {group[0].group_index for group in begun}
        numbers = {name: -1 if name is None else number_of(name) for name in of_journal.keys() - names}
        asked = {number for number in numbers.values() if number is not None and number >= self.first}
        self.following = max(asked, default=self.first - 1) + 1
        unknown = [number for number in range(self.first, self.following) if number not in asked]
        count = len(begun) + self.following - self.first
        self._submit(-(-count // self.chunk))
        self._credit -= count
        for name, entry in sorted(of_journal.items(), key=lambda item: item[0] or 0):
            is_known = name in names or (numbers[name] or 0) in asked
            verdict = _verdict_of(entry, is_judged) if is_known else None
            if verdict is not None:
                self.take(entry.samples, verdict)
            elif is_known:
                self._ready.append(entry.samples)
        self._ready.extend(self.fresh(number) for number in unknown)
        self._choose(self._credit)

    def next(self) -> Group | None:
        """The next group to begin; None while there is none."""
        if self.is_done:
            return None
        if not self._ready and not self._credit and self._wants_more:
            self._refill()
        if self._ready:
            return self._ready.popleft()
        if not self._credit:
            return None
        self._credit, self.following = self._credit - 1, self.following + 1
        return self.fresh(self.following - 1)

    def take(self, group: Group, verdict: Verdict) -> Verdict:
        """Put a finished group where it belongs; returns the verdict that came of it."""
        is_insufficient = self._remaining <= self.wanted and (self.window is None or not self._may_refill)
        if not verdict.keep and not (verdict.keep_when_insufficient and is_insufficient):
            self.reasons[verdict.reason or NO_REASON] += 1
            self.dropped += [group] if self.shows_dropped else []
            self._remaining -= 1
            return Verdict(keep=False, reason=verdict.reason)
        (self.kept if len(self.kept) < self.wanted else self.surplus).append(group)
        return Verdict(keep=True)

    def leave(self, group: Group) -> None:
        """A group that was begun is not finished: it goes on in a later iteration."""
        self.left.append(group)

    @property
    def is_done(self) -> bool:
        return len(self.kept) >= self.enough

    @property
    def carried(self) -> list[Group]:
        """What a later iteration takes: groups that are nearly there first."""
        return [*self.surplus, *self.left, *self._ready, *self.taken]

    def counts(self) -> dict[str, int]:
        """What became of every prompt. They add up, or it is our fault."""
        issued, dropped = self.following - self.first, sum(self.reasons.values())
        kept, carried = len(self.kept), len(self.carried)
        assert issued + self._taken_count == kept + dropped + carried, (
            issued,
            self._taken_count,
            kept,
            dropped,
            carried,
        )
        return {
            "issued": issued,
            "taken": self._taken_count,
            "kept": kept,
            "dropped": dropped,
            "carried": carried,
            **{f"dropped/{reason}": count for reason, count in sorted(self.reasons.items())},
        }

    def exhausted(self) -> DataError:
        """Why there are not enough groups, although nothing runs and no further prompt may be asked."""
        by_reason = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common())
        issued = self.following - self.first + self._taken_count - len(self.taken)
        refills = f" and {self.most_refills} refills" if self.window is None else ""
        return DataError(
            f"{len(self.kept)} of {self.enough} groups are kept after {issued} prompts{refills}; "
            f"{sum(self.reasons.values())} were dropped ({by_reason})",
            hint="look at what the rewards and the filter say of these prompts, or raise --rollout-max-refills",
        )

    @property
    def _wants_more(self) -> bool:
        if self.window is None:
            return self._remaining < self.wanted
        return self._remaining - len(self.kept) - len(self.surplus) < self.window

    @property
    def _may_refill(self) -> bool:
        return self._submissions <= self.most_refills

    def _refill(self) -> None:
        if not self._may_refill:
            return
        self._submit(1)
        self._choose(self.chunk)

    def _choose(self, count: int) -> None:
        """Begin with handed-over groups, up to `count`."""
        chosen = self.choose(self.taken, count) if self.taken and count else []
        self._ready.extend(chosen)
        self._credit -= len(chosen)

    def _submit(self, times: int) -> None:
        self._submissions += times
        self._credit += times * self.chunk
        self._remaining += times * self.chunk


def is_finished(group: Group) -> bool:
    return not any(Status(sample.status) in UNFINISHED for sample in group)


def _verdict_of(entry: Entry, is_judged: bool) -> Verdict | None:
    """What an earlier attempt found of a group; None if it is still to be asked or judged."""
    if not entry.is_finished:
        return None
    if entry.note is not None:
        return Verdict(keep=entry.note["keep"], reason=entry.note["reason"])
    return None if is_judged else Verdict(keep=True)

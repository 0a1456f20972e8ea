"""What a reward pool has handed over and waits for, and how much it hands over at once.

Tasks of a worker go in units: one task, or some quick ones. A task for a reward server goes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from slime_stages.rewards.tasks import RewardTask

_UNIT_SECONDS, _LARGEST_UNIT = 0.05, 16


class Packed(NamedTuple):
    """A task, ready to be sent."""

    task: RewardTask
    body: bytes
    is_remote: bool
    is_plain: bool
    """Scored without any code of the user's: it may share a unit, and may be scored again if that is cut off."""


class Ahead:
    """An iterator whose next item can be looked at before it is taken."""

    def __init__(self, tasks: Iterable[RewardTask], pack: Callable[[RewardTask], Packed]) -> None:
        self._tasks, self._pack = iter(tasks), pack
        self._next: Packed | None = None

    def peek(self) -> Packed | None:
        if self._next is None and (task := next(self._tasks, None)) is not None:
            self._next = self._pack(task)
        return self._next

    def take(self) -> Iterator[Packed]:
        """The next item, or nothing at the end."""
        taken, self._next = self.peek(), None
        if taken is not None:
            yield taken

    def rest(self) -> Iterator[RewardTask]:
        """All that is left, one at a time."""
        yield from (packed.task for packed in self.take())
        yield from self._tasks


class Outstanding:
    """The tasks that were handed over and are not answered."""

    def __init__(self, *, workers: int, requests: int) -> None:
        """`requests` is how many tasks may be on their way to a reward server; 0 without one."""
        self._workers, self._requests = workers, requests
        self._tasks: dict[int, RewardTask] = {}
        self._unit_of: dict[int, int] = {}
        self._left_of_units: dict[int, int] = {}
        self._remote: set[int] = set()
        self._next_number = 0
        self._mean_seconds: float | None = None

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def tasks(self) -> Iterable[RewardTask]:
        """In the order in which they were handed over."""
        return self._tasks.values()

    def next_unit(self, ahead: Ahead) -> list[Packed]:
        """What is to be handed over next; nothing if there is no room for it, or no more of it."""
        has_room, has_remote_room = len(self._left_of_units) < self._most_units, len(self._remote) < self._requests
        if not has_room and not has_remote_room:
            return []
        if (first := ahead.peek()) is None or not (has_remote_room if first.is_remote else has_room):
            return []
        unit = [*ahead.take()]
        while first.is_plain and len(unit) < self._unit_size and (more := ahead.peek()) and more.is_plain:
            unit += ahead.take()
        return unit

    def add(self, unit: Sequence[Packed]) -> range:
        """Count a unit as handed over; the numbers by which its tasks are answered."""
        numbers = range(self._next_number + 1, self._next_number + 1 + len(unit))
        self._next_number = numbers[-1]
        self._tasks.update(zip(numbers, (packed.task for packed in unit), strict=True))
        if unit[0].is_remote:
            self._remote.update(numbers)
        else:
            self._left_of_units[numbers[0]] = len(unit)
            self._unit_of.update(dict.fromkeys(numbers, numbers[0]))
        return numbers

    def pop(self, number: int, seconds: float) -> RewardTask | None:
        """The task that was answered after so long; None if nobody waits for it."""
        if (task := self._tasks.pop(number, None)) is None:
            return None
        self._remote.discard(number)
        if (unit := self._unit_of.pop(number, None)) is not None:
            self._left_of_units[unit] -= 1
            if not self._left_of_units[unit]:
                del self._left_of_units[unit]
        before = seconds if self._mean_seconds is None else self._mean_seconds
        self._mean_seconds = before + 0.1 * (seconds - before)
        return task

    def clear(self) -> None:
        """Wait for none of them any more."""
        for kept in (self._tasks, self._unit_of, self._left_of_units, self._remote):
            kept.clear()

    @property
    def _unit_size(self) -> int:
        """As many as take a moment: one, until it is known how long one takes."""
        if self._mean_seconds is None:
            return 1
        return max(1, min(_LARGEST_UNIT, int(_UNIT_SECONDS / max(self._mean_seconds, 1e-6))))

    @property
    def _most_units(self) -> int:
        """Of quick tasks a worker has the next ones before it is through; one more waits for whoever comes first."""
        are_quick = any(left > 1 for left in self._left_of_units.values())
        return self._workers * (3 if are_quick else 2)

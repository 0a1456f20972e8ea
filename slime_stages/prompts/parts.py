"""Taking a stream in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def in_parts(
    items: Iterable[Item], count: int, weight: Callable[[Item], int], most_weight: int
) -> Iterator[list[Item]]:
    """Lists of `count` items; of fewer where their weights reach `most_weight` before."""
    part: list[Item] = []
    total = 0
    for item in items:
        part.append(item)
        total += weight(item)
        if len(part) == count or total >= most_weight:
            yield part
            part, total = [], 0
    if part:
        yield part

"""Bin packing and balanced partitions of samples by length or cost (used by `schedule`)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np

Cost = int | float
Bin = list[int]
Subset = tuple[Cost, Bin]


def pack_first_fit(lengths: Sequence[int], capacity: int) -> list[Bin]:
    """Put each position, in order, into the first bin with room for its length; one over `capacity` is alone."""
    room = np.full(len(lengths), -1, dtype=np.int64)
    bins: list[Bin] = []
    for position, length in enumerate(lengths):
        target = int(np.argmax(room[: len(bins)] >= length)) if bins else 0
        if not bins or room[target] < length:
            target = len(bins)
            bins.append([])
            room[target] = capacity
        bins[target].append(position)
        room[target] -= length
    return bins


def split_bin(positions: Bin, lengths: Sequence[int]) -> tuple[Bin, Bin]:
    """Two halves of about equal length: the longest first, each to the half with less so far."""
    halves: tuple[Bin, Bin] = ([], [])
    sums = [0, 0]
    for position in sorted(positions, key=lambda position: -lengths[position]):
        half = 0 if sums[0] <= sums[1] else 1
        halves[half].append(position)
        sums[half] += lengths[position]
    return halves


def split_largest(bins: list[Bin], lengths: Sequence[int], target_count: int) -> list[Bin]:
    """Split the longest bin of several positions until there are `target_count`, or until all hold one.

    One half takes the bin's place, the other goes to the end; of equally long bins the later is split.
    """
    result = list(bins)
    largest = [(-_sum(bin_, lengths), -place) for place, bin_ in enumerate(result) if len(bin_) > 1]
    heapq.heapify(largest)
    while len(result) < target_count and largest:
        place = -heapq.heappop(largest)[1]
        left, right = split_bin(result[place], lengths)
        result[place] = left
        result.append(right)
        for half_place in (place, len(result) - 1):
            if len(result[half_place]) > 1:
                heapq.heappush(largest, (-_sum(result[half_place], lengths), -half_place))
    return result


def split_over_capacity(bins: list[Bin], lengths: Sequence[int], capacity: int) -> list[Bin]:
    """Split bins of several positions until none of those is longer than `capacity`."""
    waiting, done = list(reversed(bins)), []
    while waiting:
        bin_ = waiting.pop()
        if len(bin_) > 1 and _sum(bin_, lengths) > capacity:
            waiting.extend(reversed(split_bin(bin_, lengths)))
        else:
            done.append(bin_)
    return done


def partition_balanced(costs: Sequence[Cost], count: int, *, equal_size: bool) -> list[Bin]:
    """Partition positions into `count` sets of about equal cost by the largest differencing method (Karmarkar-Karp).

    With `equal_size` the sets hold equally many. Positions ascend within a set; no set is empty.
    """
    assert len(costs) >= count, (len(costs), count)
    assert not equal_size or len(costs) % count == 0, (len(costs), count)
    order = sorted(range(len(costs)), key=lambda position: (costs[position], position))
    width = count if equal_size else 1
    ticket = itertools.count()
    heap: list[tuple[Cost, int, list[Subset]]] = []
    for chunk in (order[start : start + width] for start in range(0, len(order), width)):
        subsets: list[Subset] = [(costs[position], [position]) for position in chunk]
        subsets += [(0, [])] * (count - len(chunk))
        _push(heap, subsets, next(ticket))
    while len(heap) > 1:
        widest, next_widest = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        pairs = zip(widest, reversed(next_widest), strict=True)
        _push(heap, [(a + b, left + right) for (a, left), (b, right) in pairs], next(ticket))
    return [sorted(positions) for _, positions in heap[0][2]]


def _push(heap: list[tuple[Cost, int, list[Subset]]], subsets: list[Subset], ticket: int) -> None:
    ordered = sorted(subsets, reverse=True)
    heapq.heappush(heap, (ordered[-1][0] - ordered[0][0], ticket, ordered))


def _sum(positions: Bin, lengths: Sequence[int]) -> int:
    return sum(lengths[position] for position in positions)

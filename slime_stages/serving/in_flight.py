"""Requests that engines have of this process. Who shares engines with others may end these, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_tries: dict[str, list[str]] = {}
"""By the ids that they were given: the ids by which engines know them, another one at each try."""


@contextmanager
def in_flight(rid: str) -> Iterator[list[str]]:
    """While a request is asked; gives the ids of its tries, which whoever asks adds to by `next_try`."""
    tries = _tries.setdefault(rid, [])
    try:
        yield tries
    finally:
        _tries.pop(rid, None)


def next_try(rid: str, tries: list[str]) -> str:
    """The id to ask by: the try before may still run in the engine, which refuses the same id twice."""
    tries.append(f"{rid}.{len(tries)}" if tries else rid)
    return tries[-1]


def tries_of(rid: str) -> list[str]:
    """The ids by which engines may know a request, which need not be in flight."""
    return [*_tries.get(rid, [rid])]


def requests_in_flight() -> list[str]:
    """All of them, by the ids that they were given; threads may add to them meanwhile."""
    return [*_tries.copy()]

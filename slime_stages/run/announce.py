"""What a stage call that commits several outputs, one after the other, tells whoever runs it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_listeners: list[Callable[[Path | None], object]] = []


@contextmanager
def told_on_the_way(function: Callable[[Path | None], object]) -> Iterator[None]:
    """Within the block, `function` is called with the path of each manifest but the last, which the stage returns; and
    with None, now and then, while the call waits for what others are to make."""
    _listeners.append(function)
    try:
        yield
    finally:
        _listeners.remove(function)


def announce(manifest: Path | None) -> None:
    """An output is committed, and the call goes on; None: it waits."""
    for function in list(_listeners):
        function(manifest)

"""What the progress bar of a rollout says: groups that are kept, and tokens by the second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slime_stages.progress import Progress
from slime_stages.sample import Sample


class Pace:
    """Told of each finished group, and of how many are kept by then."""

    def __init__(self, progress: Progress, *, done: int, in_flight: Callable[[], int] | None = None) -> None:
        """`in_flight` counts the groups that run, where more of them do than are waited for."""
        self._progress, self._done, self._in_flight = progress, done, in_flight
        self._tokens, self._started = 0, time.monotonic()
        progress.update(done)

    def __call__(self, group: Sequence[Sample], kept: int) -> None:
        self._tokens += sum(sample.response_length for sample in group)
        rate = self._tokens / (time.monotonic() - self._started)
        figures = {} if self._in_flight is None else {"in_flight": self._in_flight()}
        self._progress.advance(kept - self._done, tokens_per_second=f"{rate:.0f}", **figures)
        self._done = kept

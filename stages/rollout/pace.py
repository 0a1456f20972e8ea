"""What the progress bar of a rollout says: groups that are kept, and tokens by the second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slime_stages.progress import Progress
from slime_stages.sample import Sample


class Pace:
    """Told of each finished group, and of how many are kept by then."""

    def __init__(self, progress: Progress, *, done: int) -> None:
        self._progress, self._done = progress, done
        self._tokens, self._started = 0, time.monotonic()
        progress.update(done)

    def __call__(self, group: Sequence[Sample], kept: int) -> None:
        self._tokens += sum(sample.response_length for sample in group)
        rate = self._tokens / (time.monotonic() - self._started)
        self._progress.advance(kept - self._done, tokens_per_second=f"{rate:.0f}")
        self._done = kept

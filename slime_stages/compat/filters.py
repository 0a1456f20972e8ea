"""What slime's rollout loop does with a dynamic filter's answer, for plug-ins with a loop of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from slime_stages.generation.filters import DynamicFilterOutput


def call_dynamic_filter(fn: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> DynamicFilterOutput:
    """The filter's answer; without one everything is kept."""
    answer = True if fn is None else fn(*args, **kwargs)
    return answer if isinstance(answer, DynamicFilterOutput) else DynamicFilterOutput(keep=bool(answer))


def should_drop_dynamic_filter_output(
    output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int
) -> bool:
    """Whether a group goes: one that may stay where too few are under way does so then."""
    may_stay = output.keep_when_insufficient and remaining_batch_size <= target_data_size
    return not output.keep and not may_stay


class MetricGatherer:
    """Counts dropped groups by reason."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        if reason:
            self._dropped[reason] += 1

    def collect(self) -> dict[str, int]:
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self._dropped.items()}

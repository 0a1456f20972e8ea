"""Judging finished groups while others are generated: their rewards, and whether the dynamic filter keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError, UsageError
from slime_stages.rewards.scoring import SKIPPED, Score, Scorer
from slime_stages.sample import Sample
from slime_stages.trace.handles import is_trace
from stages.rollout.hooks import hook_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a group is kept."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


@dataclass(slots=True, kw_only=True)
class Judge:
    """Scores groups where anything wants rewards, and asks the filter where there is one."""

    config: Config
    scorer: Scorer
    args: Any
    filter: Callable[..., Any] | None
    is_asked: bool
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A filter is asked of one group at a time."""

    @classmethod
    def of(cls, config: Config, scorer: Scorer, *, is_asked: bool) -> Judge:
        """One that keeps everything as it is unless it is asked."""
        function = hook_of(config, "dynamic_sampling_filter_path") if is_asked else None
        return cls(config=config, scorer=scorer, args=config.as_args(), filter=function, is_asked=is_asked)

    async def __call__(self, group: list[Sample]) -> Verdict:
        """Fills in the rewards of the group. One without a reward is dropped by the filter's leave, or for that."""
        if not self.is_asked:
            return Verdict(keep=True)
        scores = await self.scorer.score(group)
        for sample, score in zip(group, scores, strict=True):
            sample.reward = score.reward
            if is_trace(sample.trace) and score.trace is not None:
                sample.trace["events"] += orjson.loads(score.trace)
        if self.filter is None:
            return Verdict(keep=True)
        if (status := _failed_status(scores)) is not None:
            return Verdict(keep=False, reason=f"reward_{status}")
        scored = [sample for sample in group if sample.reward is not None]
        async with self._asking:
            return verdict_of(await asyncio.to_thread(self._ask, scored))

    def _ask(self, scored: list[Sample]) -> Any:
        assert self.filter is not None
        try:
            return self.filter(self.args, scored)
        except SlimeStagesError:
            raise
        except Exception as error:
            path = self.config.rollout.dynamic_sampling_filter_path
            raise UsageError(
                f"`{path}` failed on group {scored[0].group_index}: {type(error).__name__}: {error}",
                hint="it gets the args and a flat list of scored samples",
            ) from error


def verdict_of(answer: Any) -> Verdict:
    """What a filter has answered: an object with `keep`, or something that is true or not."""
    if not hasattr(answer, "keep"):
        return Verdict(keep=bool(answer))
    return Verdict(
        keep=bool(answer.keep),
        reason=getattr(answer, "reason", None) or None,
        keep_when_insufficient=bool(getattr(answer, "keep_when_insufficient", False)),
    )


def _failed_status(scores: list[Score]) -> str | None:
    """Why a group cannot be judged: scoring a sample failed, or none was scored, since all of them failed before."""
    failed = [score.status for score in scores if score.reward is None and score.status != SKIPPED]
    if failed:
        return failed[0]
    return SKIPPED if all(score.reward is None for score in scores) else None

"""One pool scores group after group, several at a time, and what it cannot score says why."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from slime_stages.errors import UsageError
from slime_stages.rewards.scoring import Score, Scorer
from slime_stages.sample import Sample, Status
from tests.slime_stages.config.settings import resolved

HERE = "tests.slime_stages.rewards.test_scoring"


def patient(args: object, sample: Sample, **kwargs: object) -> float:
    """Waits as long as it is told to; the reward is what is told, too."""
    time.sleep(sample.metadata["seconds"])
    if sample.metadata["reward"] is None:
        raise ValueError("no grade")
    return float(sample.metadata["reward"])


def group(*rewards: float | None, seconds: float = 0.0) -> list[Sample]:
    return [
        Sample(group_index=0, status=Status.COMPLETED, metadata={"seconds": seconds, "reward": reward})
        for reward in rewards
    ]


def score(*groups: list[Sample], **settings: Any) -> list[list[Score]]:
    config = resolved(**{"custom_rm_path": f"{HERE}.patient", "reward_workers": 2, **settings}).config

    async def all_of_them() -> list[list[Score]]:
        return list(await asyncio.gather(*(scorer.score(samples) for samples in groups)))

    with Scorer(config) as scorer:
        return asyncio.run(all_of_them())


def test_groups_are_scored_while_a_slow_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()

    slow, fast = score(group(1.0, seconds=1.0), group(*[float(i) for i in range(8)]))

    assert [one.reward for one in slow] == [1.0]
    assert [one.reward for one in fast] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert time.monotonic() - started < 30


def test_rewards_that_are_there_and_samples_that_failed_are_not_asked() -> None:
    samples = [Sample(reward=0.5, status=Status.COMPLETED), Sample(status=Status.FAILED)]

    [found] = score(samples)

    assert [(one.reward, one.status) for one in found] == [(0.5, "given"), (None, "skipped")]


def test_an_error_and_a_timeout_are_no_reward_of_their_sample_alone() -> None:
    [found] = score([*group(None, 1.0), *group(2.0, seconds=60.0)], reward_timeout=1.0)

    assert [(one.reward, one.status) for one in found] == [(None, "error"), (1.0, "scored"), (None, "timeout")]


def test_a_group_that_is_given_up_does_not_disturb_the_others() -> None:
    config = resolved(custom_rm_path=f"{HERE}.patient", reward_workers=1).config

    async def give_up_one() -> list[Score]:
        first = asyncio.ensure_future(scorer.score(group(1.0, seconds=0.5)))
        await asyncio.sleep(0.2)
        first.cancel()
        return await scorer.score(group(2.0))

    with Scorer(config) as scorer:
        assert [one.reward for one in asyncio.run(give_up_one())] == [2.0]


def dict_reward(args: object, sample: Sample, **kwargs: object) -> dict[str, float]:
    return {"right": 1.0}


def test_a_dict_without_the_key_asked_for_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="the reward is a dict with right"):
        score(group(1.0), custom_rm_path=f"{HERE}.dict_reward")


def test_without_anything_to_score_no_process_is_started() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Scorer(resolved().config):
        assert len(os.listdir("/proc/self/fd")) == before

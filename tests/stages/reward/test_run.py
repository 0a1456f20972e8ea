"""Scoring a list of samples: what is passed through, what is asked, what is null."""

from __future__ import annotations

import time
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from slime_stages.errors import RetryableError, UsageError
from slime_stages.rewards.pool import RewardOutcome, RewardPool
from slime_stages.rewards.scoring import Identity, number, score
from slime_stages.sample import Sample, Status
from tests.slime_stages.config.settings import resolved


async def length_reward(args: object, sample: object, **kwargs: object) -> object:
    """The number of characters; of a list, each one's rank by it."""
    if isinstance(sample, list):
        ranked = sorted(sample, key=lambda item: len(item.response))
        return [float(ranked.index(item)) for item in sample]
    assert isinstance(sample, Sample)
    return float(len(sample.response))


def parts_reward(args: object, sample: Sample, **kwargs: object) -> dict[str, float]:
    return {"score": 1.0, "length": float(len(sample.response))}


HERE = "tests.stages.reward.test_run"


def finished(response: str, **fields: object) -> Sample:
    return Sample(response=response, status=Status.COMPLETED, **fields)  # type: ignore[arg-type]


def test_rewards_that_generation_filled_in_are_passed_through() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward").config

    scores = score([finished("abc", reward=0.0), finished("ab")], config, title="t")

    assert [(s.reward, s.status) for s in scores] == [(0.0, "given"), (2.0, "scored")]


def test_aborted_and_failed_samples_are_skipped_and_have_no_reward() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward").config
    samples = [Sample(response="a", status=Status.ABORTED), Sample(status=Status.FAILED), finished("abcd")]

    scores = score(samples, config, title="t")

    assert [(s.reward, s.status) for s in scores] == [(None, "skipped"), (None, "skipped"), (4.0, "scored")]
    assert scores[0].message == "the sample is aborted"


def test_a_truncated_sample_is_scored() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward").config

    [only] = score([Sample(response="abc", status=Status.TRUNCATED)], config, title="t")

    assert only.reward == 3.0


def test_siblings_of_a_fan_out_are_scored_by_one_call_with_the_list() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward").config
    samples = [finished("abc", rollout_id=7), finished("a", rollout_id=7), finished("ab")]

    assert [s.reward for s in score(samples, config, title="t")] == [1.0, 0.0, 2.0]


def test_with_group_rm_a_whole_group_is_scored_by_one_call() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward", group_rm=True, n_samples_per_prompt=2).config
    samples = [finished("abc", group_index=0), finished("a", group_index=0), finished("ab", group_index=1)]

    assert [s.reward for s in score(samples, config, title="t")] == [1.0, 0.0, 0.0]


def test_the_number_of_a_dict_reward_is_the_entry_asked_for() -> None:
    config = resolved(custom_rm_path=f"{HERE}.parts_reward", reward_key="length").config

    [only] = score([finished("abc")], config, title="t")

    assert only.reward == {"score": 1.0, "length": 3.0}
    assert number(only.reward, config) == 3.0


def test_evaluation_may_have_an_entry_of_its_own() -> None:
    config = resolved(reward_key="score", eval_reward_key="length").config
    reward = {"score": 1.0, "length": 3.0}

    assert (number(reward, config), number(reward, config, evaluation=True)) == (1.0, 3.0)


def test_a_dict_reward_without_reward_key_is_a_usage_error_that_names_the_keys() -> None:
    config = resolved(custom_rm_path=f"{HERE}.parts_reward").config

    with pytest.raises(UsageError, match="the reward is a dict with score, length") as caught:
        score([finished("abc")], config, title="t")

    assert caught.value.hint == "add --reward-key score"


def test_a_wrong_answer_gets_0_and_an_error_gets_null() -> None:
    config = resolved(rm_type="math").config
    samples = [finished(r"\boxed{3}", label="4"), finished(r"\boxed{4}", label="4")]

    assert [(s.reward, s.status) for s in score(samples, config, title="t")] == [(0.0, "scored"), (1.0, "scored")]


def test_samples_are_taken_as_workers_become_free_and_not_before() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward", reward_workers=1).config
    taken = []

    def stream() -> Iterator[Sample]:
        for row in range(40):
            taken.append(row)
            assert len(taken) <= 4 + len(scored)
            yield finished("cat", label="cat")

    scored: list[int] = []
    identities = [Identity(index=row, group_index=None, rollout_id=None) for row in range(40)]
    pool_receive = RewardPool.receive

    def receive(pool: RewardPool) -> RewardOutcome:
        outcome = pool_receive(pool)
        scored.append(int(outcome.key))
        return outcome

    with patch.object(RewardPool, "receive", receive):
        scores = score(stream(), config, title="t", identities=identities)

    assert [s.reward for s in scores] == [3.0] * 40


def test_a_type_scores_the_samples_of_a_group_each_on_its_own() -> None:
    config = resolved(rm_type="math", group_rm=True, n_samples_per_prompt=2).config
    samples = [finished(r"\boxed{4}", label="4", group_index=0), finished("no", label=None, group_index=0)]
    samples[1].metadata["rm_type"] = "gpqa"

    assert [(s.reward, s.status) for s in score(samples, config, title="t")] == [(1.0, "scored"), (None, "error")]


def test_siblings_need_not_lie_side_by_side() -> None:
    config = resolved(custom_rm_path=f"{HERE}.length_reward").config
    samples = [finished("abc", rollout_id=7), finished("ab"), finished("a", rollout_id=7)]

    assert [s.reward for s in score(samples, config, title="t")] == [1.0, 2.0, 0.0]


def slow_reward(args: object, sample: Sample, **kwargs: object) -> float:
    time.sleep(sample.metadata["seconds"])
    return 1.0


def test_a_shard_that_is_not_scored_in_time_names_what_is_left() -> None:
    config = resolved(
        custom_rm_path=f"{HERE}.slow_reward", reward_timeout=1.0, reward_shard_timeout=1.5, reward_workers=1
    ).config
    samples = [finished("a", metadata={"seconds": seconds}) for seconds in (0.0, 0.9, 0.9, 0.9)]

    with pytest.raises(RetryableError, match=r"samples were not scored within 1\.5 s: .*3") as caught:
        score(samples, config, title="t")

    assert caught.value.exit_code == 75

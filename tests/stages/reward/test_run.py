"""Scoring a list of samples: what is passed through, what is asked, what is null."""

from __future__ import annotations

import pytest

from slime_stages.errors import UsageError
from slime_stages.sample import Sample, Status
from stages.reward.run import number, score
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


def test_a_dict_reward_without_reward_key_is_a_usage_error_that_names_the_keys() -> None:
    config = resolved(custom_rm_path=f"{HERE}.parts_reward").config

    with pytest.raises(UsageError, match="the reward is a dict with score, length") as caught:
        score([finished("abc")], config, title="t")

    assert caught.value.hint == "add --reward-key score"


def test_a_wrong_answer_gets_0_and_an_error_gets_null() -> None:
    config = resolved(rm_type="math").config
    samples = [finished(r"\boxed{3}", label="4"), finished(r"\boxed{4}", label="4")]

    assert [(s.reward, s.status) for s in score(samples, config, title="t")] == [(0.0, "scored"), (1.0, "scored")]

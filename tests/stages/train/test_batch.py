"""From shards to the batch: order, drop reasons, and what the gate refuses."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from slime_stages.config import Config
from slime_stages.data.sample_table import samples_table
from slime_stages.errors import DataError
from slime_stages.run.plan import Plan, plan_shards
from slime_stages.sample import Sample, Status
from stages.train.batch import IterationBatch, batch_of
from stages.train.gate import Gate, check_log_probs, check_samples
from stages.train.work import needs_backward, step_weights
from tests.slime_stages.config.settings import resolved

PLAN = Plan(
    run_id="r",
    iteration=0,
    config_revision=0,
    policy_version=3,
    prompts_digest="",
    n_samples_per_prompt=2,
    seed=0,
    shuffle=False,
    shards=plan_shards(0, 2, 1),
)


def sample(index: int, *, length: int = 2, status: Status = Status.COMPLETED, version: str = "3") -> Sample:
    """Of group index // 2: prompt [1, 2], then `length` response tokens."""
    made = Sample(index=index, group_index=index // 2, tokens=[1, 2], metadata={})
    made.append_response_tokens(None, tokens=[5] * length, log_probs=[-1.0] * length)
    made.status = status
    made.weight_versions = [version]
    return made


def batch(samples: list[Sample], rewards: list[float | None], config: Config | None = None) -> IterationBatch:
    config = config or settings()
    read = samples_table(samples, iteration=0, shard=0).drop_columns("reward")
    return batch_of(read.append_column("reward", pa.array(rewards, pa.float64())), config)


def settings(**more: object) -> Config:
    return resolved(rollout_batch_size=2, n_samples_per_prompt=2, **more).config


def gate(*accepted: str, **more: object) -> Gate:
    return Gate(plan=PLAN, config=settings(**more), accepted=frozenset(accepted))


def test_rewards_are_centred_and_scaled_within_their_group() -> None:
    data = batch([sample(i) for i in range(4)], [1.0, 0.0, 1.0, 1.0])

    assert data.batch.rewards.tolist() == pytest.approx([0.7071, -0.7071, 0.0, 0.0], abs=1e-4)
    assert data.drop_reasons == [None] * 4


def test_a_sample_without_reward_keeps_its_place_with_mask_0_and_stays_out_of_its_groups_mean() -> None:
    data = batch([sample(i) for i in range(4)], [1.0, None, 1.0, 0.0])

    assert data.drop_reasons == [None, "no_reward", None, None]
    assert data.batch.loss_mask_sums.tolist() == [2, 0, 2, 2]
    assert data.batch.rewards.tolist() == pytest.approx([0.0, 0.0, 0.7071, -0.7071], abs=1e-4)


def test_a_null_reward_can_count_as_a_number_instead() -> None:
    data = batch([sample(0), sample(1)], [1.0, None], settings(null_reward=0.0))

    assert data.drop_reasons == [None, None]
    assert data.batch.rewards.tolist() == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert np.isnan(data.raw_rewards).tolist() == [False, True]


def test_a_null_reward_is_no_number_for_what_was_never_finished() -> None:
    samples = [sample(0), sample(1, status=Status.ABORTED), sample(2), sample(3, status=Status.FAILED)]

    data = batch(samples, [1.0, None, None, None], settings(null_reward=-1.0, disable_rewards_normalization=True))

    assert data.drop_reasons == [None, "aborted", None, "failed"]
    assert data.batch.rewards.tolist() == [1.0, 0.0, -1.0, 0.0]
    assert data.batch.loss_mask_sums.tolist() == [2, 0, 2, 0]


def test_a_sibling_without_reward_takes_no_other_out_of_its_rollout() -> None:
    samples = [sample(0), sample(0), sample(1)]  # the first two are a fan-out's
    for each in samples:
        each.rollout_id = each.index

    data = batch(samples, [None, 1.0, 0.0])

    assert data.drop_reasons == ["no_reward", None, None]
    assert data.batch.loss_mask_sums.tolist() == [0, 2, 2]
    assert data.batch.rewards.tolist() == pytest.approx([0.0, 0.7071, -0.7071], abs=1e-4)


def test_aborted_samples_and_those_without_tokens_say_why_they_are_dropped() -> None:
    samples = [
        sample(0),
        sample(1, status=Status.ABORTED),
        sample(2, length=0, status=Status.FAILED),
        sample(3, length=0),
    ]

    assert batch(samples, [1.0, None, None, 0.0]).drop_reasons == [None, "aborted", "failed", "no_tokens"]


def test_only_samples_with_a_loss_term_other_than_zero_need_a_backward_pass() -> None:
    data = batch([sample(i) for i in range(4)], [1.0, 0.0, 1.0, 1.0])

    assert needs_backward(data.batch, settings()).tolist() == [True, True, False, False]
    assert needs_backward(data.batch, settings(entropy_coef=0.01)).tolist() == [True] * 4
    predicting = settings(mtp_num_layers=1, enable_mtp_training=True)
    assert needs_backward(data.batch, predicting).tolist() == [True] * 4


def test_every_rollout_weighs_the_same_however_long_it_is() -> None:
    data = batch([sample(0, length=2), sample(1, length=4), sample(2), sample(3)], [1.0, 0.0, 1.0, 0.0])

    weights = step_weights(data.with_rows(range(4)), range(4), settings(), step_token_count=10)

    assert weights[0].tolist() == pytest.approx([1 / 2 / 4] * 2)
    assert weights[1].tolist() == pytest.approx([1 / 4 / 4] * 4)


def test_the_gate_refuses_samples_of_another_weight_version_and_names_the_first() -> None:
    data = batch([sample(0), sample(1, version="2"), sample(2), sample(3)], [1.0, 0.0, 1.0, 0.0])

    with pytest.raises(DataError, match=r"weight version 2; the plan says 3 \(sample 1 first\)"):
        check_samples(data, gate())


def test_the_gate_refuses_prompts_that_the_plan_does_not_name() -> None:
    data = batch([sample(0), sample(9)], [1.0, 0.0])

    with pytest.raises(DataError, match="prompts that its plan does not name: 4"):
        check_samples(data, gate())


def test_the_gate_refuses_too_many_null_rewards_and_says_how_many_of_each_kind() -> None:
    data = batch([sample(i) for i in range(4)], [1.0, None, None, None])

    with pytest.raises(DataError, match=r"3 of 4 samples cannot be trained on \(3 no_reward\)"):
        check_samples(data, gate())


def test_the_gate_refuses_too_many_truncated_samples() -> None:
    data = batch([sample(0, status=Status.TRUNCATED), sample(1)], [1.0, 0.0])

    with pytest.raises(DataError, match="50% of 2 samples are truncated; max_truncated_share is 25%"):
        check_samples(data, gate(max_truncated_share=0.25))


def test_the_gate_warns_and_refuses_by_the_gap_between_engine_and_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    check_log_probs(0.001, gate())
    check_log_probs(0.01, gate())
    assert capsys.readouterr().err == (
        "warning: engine and trainer give the sampled tokens probabilities that differ by 0.0100 on average, "
        "above 0.005\n"
    )

    with pytest.raises(DataError, match=r"above refuse_probs_diff 0\.05; nothing was trained"):
        check_log_probs(0.1, gate())

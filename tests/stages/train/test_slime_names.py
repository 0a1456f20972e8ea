"""Functions of slime's that plug-ins of the trainer call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from slime_stages.errors import UsageError
from stages.train.slime_names import (
    all_gather_with_cp,
    compute_approx_kl,
    compute_cispo_loss,
    compute_gspo_kl,
    compute_policy_loss,
    get_advantages_and_returns,
    get_grpo_returns,
    get_reinforce_plus_plus_baseline_advantages,
    get_reinforce_plus_plus_returns,
    get_sum_of_sample_mean,
    icepop_function,
    slice_log_prob_with_cp,
    vanilla_tis_function,
)


def test_kl_and_policy_loss_are_those_of_the_objective() -> None:
    kl = compute_approx_kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.2, -1.5]), kl_loss_type="k2")
    loss, clipped = compute_policy_loss(
        torch.tensor([0.0, -0.5, 0.5, -2.0]), torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2, 0.28, eps_clip_c=3.0
    )

    assert kl.tolist() == pytest.approx([0.02, 0.125])
    assert loss.tolist() == pytest.approx([-1.0, -1.28, 0.8, 3.0])
    assert clipped.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_cispo_weighs_log_probs_by_a_clipped_ratio() -> None:
    loss, clipped = compute_cispo_loss(
        torch.tensor([0.0, -2.0]), torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 1.0]), 1.0, 4.0
    )

    assert loss.tolist() == pytest.approx([1.0, 2.5])
    assert clipped.tolist() == [0.0, 1.0]


def test_gspo_has_one_gap_for_all_tokens_of_a_sample() -> None:
    new, old = [torch.tensor([-1.0, -2.0]), torch.tensor([-1.0])], [torch.tensor([-1.5, -9.0]), torch.tensor([-0.5])]

    gap = compute_gspo_kl(new, old, new, [torch.tensor([1, 0]), torch.tensor([1])])

    assert gap.tolist() == [-0.5, -0.5, 0.5]


def test_returns_and_advantages_are_lists_with_an_entry_for_each_sample() -> None:
    kl = [torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0])]
    masks = [torch.tensor([1, 1, 0, 0]), torch.tensor([1])]
    rewards = torch.tensor([1.0, 2.0])

    plain = get_grpo_returns(rewards, kl)
    discounted = get_reinforce_plus_plus_returns(rewards, kl, masks, [4, 1], [6, 3], kl_coef=0.5, gamma=0.9)
    baseline = get_reinforce_plus_plus_baseline_advantages(rewards, kl, kl_coef=0.5)

    assert [row.tolist() for row in plain] == [[1.0] * 4, [2.0]]
    assert [row.tolist() for row in discounted] == [pytest.approx([0.76, 0.9, 0, 0]), [1.5]]
    assert [row.tolist() for row in baseline] == [pytest.approx([0.95, 0.9, 0.85, 0.8]), [1.5]]


def test_generalised_advantages_look_back_from_the_reward() -> None:
    advantages, returns = get_advantages_and_returns(
        5, 3, torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.0, 0.0, 1.0]), gamma=0.9, lambd=0.8
    )

    assert advantages.tolist() == pytest.approx([0.4372, 0.51, 0.5])
    assert returns.tolist() == pytest.approx([0.6372, 0.81, 1.0])


def test_weights_for_the_gap_to_the_engine_are_held_or_dropped() -> None:
    given = {
        "pg_loss": torch.ones(2),
        "train_log_probs": [torch.zeros(2)],
        "rollout_log_probs": [torch.tensor([0.5, 4.0]).log().neg()],
        "loss_masks": [torch.ones(2)],
        "total_lengths": [4],
        "response_lengths": [2],
    }
    args = SimpleNamespace(tis_clip_low=0.1, tis_clip=2.0)

    held, masks, metrics = vanilla_tis_function(args, **given)
    dropped, _, _ = icepop_function(args, **given)

    assert held.tolist() == pytest.approx([0.5, 2.0])
    assert dropped.tolist() == pytest.approx([0.5, 0.0])
    assert masks is given["loss_masks"]
    assert {name: values.tolist() for name, values in metrics.items()} == {
        "tis": pytest.approx([0.5, 4.0]),
        "tis_clipfrac": [0.0, 1.0],
        "tis_abs": pytest.approx([0.5, 3.0]),
    }


def test_means_are_those_of_samples_or_of_the_rollouts_that_they_are_part_of() -> None:
    lengths = ([4, 3], [2, 1])
    masks = [torch.tensor([1, 1]), torch.tensor([1])]
    values = torch.tensor([1.0, 3.0, 5.0])

    assert get_sum_of_sample_mean(*lengths, masks)(values).item() == 7.0
    assert get_sum_of_sample_mean(*lengths, masks, torch.tensor([3.0, 3.0]))(values).item() == 3.0
    assert get_sum_of_sample_mean(*lengths, masks, None, True)(values).item() == 9.0


def test_responses_are_whole() -> None:
    values = torch.tensor([1.0, 2.0])

    assert all_gather_with_cp(values, total_length=5, response_length=2) is values
    assert slice_log_prob_with_cp([0.5, 0.25], 5, 2) == [0.5, 0.25]
    with pytest.raises(UsageError, match="1 values are not a response of 2 tokens"):
        all_gather_with_cp(values[:1], 5, 2)

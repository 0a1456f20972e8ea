"""Advantage estimators on flat tokens, against slime's values and against plain loops."""

from __future__ import annotations

import pytest
import torch

from slime_stages.errors import DataError
from stages.train.algorithm.advantages import (
    compute_advantages,
    discounted_sums,
    generalized_advantages,
    reinforce_plus_plus_returns,
    subtract_teacher_kl,
    terminal_rewards,
    whiten,
)

ONE_SAMPLE = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo"])
def test_group_estimators_give_each_token_the_reward_of_its_sample(estimator: str) -> None:
    result = compute_advantages(
        estimator,  # type: ignore[arg-type]
        torch.tensor([0.5, -0.5]),
        torch.tensor([1, 0, 1]),
        torch.tensor([0, 0, 1]),
        kl=torch.ones(3),
        kl_coef=0.1,
    )

    assert result.advantages.tolist() == [0.5, 0.5, -0.5]
    assert result.returns.tolist() == [0.5, 0.5, -0.5]


def test_generalized_advantages_give_slimes_values() -> None:
    rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.2, 0.3, 0.5])

    result = generalized_advantages(rewards, values, torch.ones(3), ONE_SAMPLE, gamma=0.9, lambd=0.8)

    assert result.advantages.tolist() == pytest.approx([0.4372, 0.51, 0.5], abs=1e-6)
    assert result.returns.tolist() == pytest.approx([0.6372, 0.81, 1.0], abs=1e-6)


def test_ppo_puts_the_reward_on_the_last_token_less_the_kl_penalty() -> None:
    result = compute_advantages(
        "ppo",
        torch.tensor([1.1]),
        torch.ones(3),
        ONE_SAMPLE,
        kl=torch.tensor([0.0, 0.0, 0.2]),
        values=torch.tensor([0.2, 0.3, 0.5]),
        kl_coef=0.5,
        gamma=0.9,
        lambd=0.8,
    )

    assert result.advantages.tolist() == pytest.approx([0.4372, 0.51, 0.5], abs=1e-6)


def test_generalized_advantages_step_over_tool_output() -> None:
    loss_mask = torch.tensor([1, 0, 0, 1, 1, 0])
    rewards = torch.tensor([0.0, 9.0, 9.0, 0.0, 1.0, 9.0])
    values = torch.tensor([0.2, 7.0, 7.0, 0.3, 0.5, 7.0])

    result = generalized_advantages(rewards, values, loss_mask, torch.zeros(6, dtype=torch.long), gamma=0.9, lambd=0.8)

    assert result.advantages.tolist() == pytest.approx([0.4372, 0, 0, 0.51, 0.5, 0], abs=1e-6)


def test_reinforce_plus_plus_gives_slimes_values() -> None:
    penalty = 0.5 * torch.tensor([0.1, 0.2, 0.3, 0.4])
    mask, one_sample = torch.tensor([1, 1, 0, 0]), torch.zeros(4, dtype=torch.long)

    returns = reinforce_plus_plus_returns(torch.tensor([1.0]), penalty, mask, one_sample, gamma=0.9)

    assert returns.tolist() == pytest.approx([0.76, 0.9, 0.0, 0.0], abs=1e-6)


def test_a_fully_masked_sample_has_no_return_and_does_not_stop_the_others() -> None:
    result = compute_advantages(
        "reinforce_plus_plus",
        torch.tensor([3.0, 1.0]),
        torch.tensor([0, 0, 1, 1]),
        torch.tensor([0, 0, 1, 1]),
        gamma=0.5,
    )

    assert result.advantages.tolist() == [0.0, 0.0, 0.5, 1.0]


def test_the_baseline_variant_subtracts_the_kl_of_each_token() -> None:
    result = compute_advantages(
        "reinforce_plus_plus_baseline",
        torch.tensor([0.5]),
        torch.ones(2),
        torch.zeros(2, dtype=torch.long),
        kl=torch.tensor([1.0, -2.0]),
        kl_coef=0.1,
    )

    assert result.advantages.tolist() == pytest.approx([0.4, 0.7])


def test_terminal_rewards_stand_on_the_last_unmasked_token_of_each_sample() -> None:
    sample_index = torch.tensor([0, 0, 0, 2, 2, 3])  # sample 1 has no token
    loss_mask = torch.tensor([1, 1, 0, 1, 1, 0])

    placed = terminal_rewards(torch.tensor([5.0, 6.0, 7.0, 8.0]), loss_mask, sample_index)

    assert placed.tolist() == [0, 5, 0, 0, 7, 0]


@pytest.mark.parametrize("discount", [1.0, 0.97, 0.0])
def test_discounted_sums_equal_the_plain_loop(discount: float) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 130, 2, 77, 0, 5]
    sample_index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    values = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)

    expected, carried = values.clone(), 0.0
    for position in reversed(range(len(values))):
        is_end = position + 1 == len(values) or sample_index[position] != sample_index[position + 1]
        carried = values[position].item() + (0.0 if is_end else discount * carried)
        expected[position] = carried

    torch.testing.assert_close(discounted_sums(values, sample_index, discount), expected)


def test_no_tokens_have_no_advantages() -> None:
    empty, no_index = torch.zeros(0), torch.zeros(0, dtype=torch.long)

    result = compute_advantages("ppo", torch.tensor([1.0]), empty, no_index, values=empty)

    assert result.advantages.tolist() == []


def test_the_teacher_pulls_towards_its_own_log_probs() -> None:
    advantages, reverse_kl = subtract_teacher_kl(
        torch.tensor([1.0, 1.0]), torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]), opd_kl_coef=2.0
    )

    assert reverse_kl.tolist() == [0.5, -1.0]
    assert advantages.tolist() == [0.0, 3.0]


def test_whitening_counts_unmasked_tokens_and_shifts_all() -> None:
    whitened = whiten(torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([1, 1, 1, 0]))

    assert whitened.tolist() == pytest.approx([-1.0, 0.0, 1.0, 8.0], abs=1e-5)


def test_whitening_in_two_ranks_equals_whitening_in_one() -> None:
    values, mask = torch.tensor([1.0, 2.0, 3.0, 10.0, 4.0]), torch.tensor([1, 1, 1, 0, 1])
    halves = [slice(0, 2), slice(2, 5)]
    moments: list[torch.Tensor] = []
    for half in halves:
        whiten(values[half], mask[half], all_reduce=lambda own: moments.append(own) or own)  # type: ignore[func-returns-value]
    total = moments[0] + moments[1]

    parts = [whiten(values[half], mask[half], all_reduce=lambda own: total) for half in halves]

    torch.testing.assert_close(torch.cat(parts), whiten(values, mask))


def test_one_unmasked_token_is_whitened_to_zero() -> None:
    assert whiten(torch.tensor([3.0, 3.0]), torch.tensor([1, 0])).tolist() == [0.0, 0.0]


def test_whitening_without_an_unmasked_token_is_refused() -> None:
    with pytest.raises(DataError, match="no token"):
        whiten(torch.tensor([1.0]), torch.tensor([0]))

"""The loss of a step is the same however its tokens are split (slime's values 8.0, 6.5, 12.5/3, 3.0, 13.1667/3)."""

from __future__ import annotations

import math

import pytest
import torch

from stages.train.algorithm.reducers import count_step_tokens, token_weights, weighted_sum


def step_loss(
    masks: list[list[int]],
    rollout_mask_sums: list[int],
    *,
    global_batch_size: int,
    calculate_per_token_loss: bool = False,
) -> float:
    """The loss of tokens 1, 2, 3, … under these masks."""
    values = torch.arange(1.0, 1 + sum(len(mask) for mask in masks))
    weights = token_weights(
        torch.tensor([entry for mask in masks for entry in mask]),
        torch.tensor([sample for sample, mask in enumerate(masks) for _ in mask]),
        torch.tensor(rollout_mask_sums),
        global_batch_size=global_batch_size,
        calculate_per_token_loss=calculate_per_token_loss,
        step_token_count=count_step_tokens(torch.tensor([sum(mask) for mask in masks])),
    )
    return float(weighted_sum(values, weights))


def test_siblings_form_one_mean_and_rollouts_weigh_the_same() -> None:
    # Rollout 0 is samples 0 to 2, mean of 1..9 is 5; rollout 1 is sample 3, mean of 10..12 is 11.
    assert step_loss([[1] * 3] * 4, [9, 9, 9, 3], global_batch_size=2) == pytest.approx(8.0)


def test_per_token_every_token_weighs_the_same() -> None:
    loss = step_loss([[1] * 3] * 4, [9, 9, 9, 3], global_batch_size=2, calculate_per_token_loss=True)

    assert loss == pytest.approx(6.5)


def test_masked_tokens_and_removed_samples_give_slimes_values() -> None:
    masks, sums = [[1, 1], [1, 0, 1], [0], [1]], [2, 2, 2, 1]

    assert step_loss(masks, sums, global_batch_size=3) == pytest.approx(12.5 / 3)
    assert step_loss(masks, sums, global_batch_size=3, calculate_per_token_loss=True) == pytest.approx(3.0)


def test_a_kept_sibling_joins_the_mean_of_its_rollout() -> None:
    loss = step_loss([[1, 1], [1, 0, 1], [1], [1]], [2, 3, 3, 1], global_batch_size=3)

    assert loss == pytest.approx((1.5 + 14 / 3 + 7) / 3)


def test_a_fully_masked_rollout_is_zero_but_counts() -> None:
    assert step_loss([[1, 1], [0, 0]], [2, 0], global_batch_size=2) == pytest.approx(1.5 / 2)


@pytest.mark.parametrize("calculate_per_token_loss", [False, True])
def test_any_split_over_micro_batches_and_ranks_adds_up_to_the_same_loss(calculate_per_token_loss: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    rollout = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4])
    sample_index = torch.repeat_interleave(torch.arange(8), lengths)
    loss_mask = torch.randint(0, 2, (int(lengths.sum()),), generator=generator)
    values = torch.randn(len(loss_mask), generator=generator)
    mask_sums = torch.zeros(8, dtype=torch.long).index_add(0, sample_index, loss_mask)
    rollout_mask_sums = torch.zeros(5, dtype=torch.long).index_add(0, rollout, mask_sums)[rollout]

    def loss_of(tokens: torch.Tensor) -> float:
        """The share of some tokens, whose rank sees their samples only, renumbered."""
        samples, local_index = torch.unique(sample_index[tokens], return_inverse=True)
        weights = token_weights(
            loss_mask[tokens],
            local_index,
            rollout_mask_sums[samples],
            global_batch_size=5,
            calculate_per_token_loss=calculate_per_token_loss,
            step_token_count=count_step_tokens(mask_sums),
        )
        return float(weighted_sum(values[tokens], weights))

    whole = loss_of(torch.arange(len(values)))
    by_sample = [loss_of(torch.nonzero(sample_index == sample).flatten()) for sample in range(8)]
    across_samples = [loss_of(torch.arange(len(values))[offset::3]) for offset in range(3)]

    assert sum(by_sample) == pytest.approx(whole, abs=1e-6)
    assert sum(across_samples) == pytest.approx(whole, abs=1e-6)


def test_tokens_rejected_by_a_correction_stay_in_the_denominator() -> None:
    assert step_loss([[1, 1, 0]], [3], global_batch_size=1) == pytest.approx(1.0)  # (1 + 2) / 3


def test_what_a_masked_token_holds_does_not_matter() -> None:
    assert float(weighted_sum(torch.tensor([math.nan, math.inf, 2.0]), torch.tensor([0.0, 0.0, 0.5]))) == 1.0

"""Policy losses against slime's values, and their gradients where those are the point."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slime_stages.errors import UsageError
from stages.train.algorithm.losses import (
    ClipRange,
    PolicyLoss,
    cispo_loss,
    clipped_loss,
    off_policy_kept,
    policy_loss,
    value_loss,
)

PPO_KL = torch.tensor([0.0, -0.5, 0.5, -2.0])
ADVANTAGES = torch.tensor([1.0, 1.0, -1.0, -1.0])
DAPO_CLIP = ClipRange(eps_clip=0.2, eps_clip_high=0.28)


def of_one_sample(estimator: str, log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
    return policy_loss(
        estimator,  # type: ignore[arg-type]
        log_probs,
        old,
        advantages,
        clip=DAPO_CLIP,
        loss_mask=mask,
        sample_index=torch.zeros(len(mask), dtype=torch.long),
        sample_count=1,
    )


def test_the_clipped_loss_gives_slimes_values() -> None:
    result = clipped_loss(PPO_KL, ADVANTAGES, clip=DAPO_CLIP)

    assert result.pg_loss.tolist() == pytest.approx([-1.0, -1.28, 0.8, 7.389056], abs=1e-5)
    assert result.pg_clipfrac.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_the_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    result = clipped_loss(PPO_KL, ADVANTAGES, clip=ClipRange(eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=3.0))

    assert result.pg_loss.tolist() == pytest.approx([-1.0, -1.28, 0.8, 3.0], abs=1e-5)


def test_the_upper_clip_defaults_to_the_lower() -> None:
    result = clipped_loss(torch.tensor([-0.5]), torch.tensor([1.0]), clip=ClipRange())

    assert result.pg_loss.tolist() == pytest.approx([-1.2])


def test_a_dual_clip_of_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1\.0, not above 1"):
        ClipRange(eps_clip_c=1.0)


def test_grpo_takes_its_ratio_from_new_and_old_log_probs() -> None:
    old = torch.tensor([-1.0, -1.0])

    result = of_one_sample("grpo", torch.tensor([-1.0, -0.5]), old, torch.tensor([2.0, 1.0]), torch.ones(2))

    assert result.pg_loss.tolist() == pytest.approx([-2.0, -1.28])
    assert result.ppo_kl.tolist() == [0.0, -0.5]


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)

    of_one_sample(
        "grpo", log_probs, log_probs.detach(), torch.tensor([2.0, -3.0]), torch.ones(2)
    ).pg_loss.sum().backward()

    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-2.0, 3.0]


def test_gspo_takes_the_mean_over_the_unmasked_tokens_of_the_sample() -> None:
    new, old = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.1, -2.2, -2.7])

    result = of_one_sample("gspo", new, old, torch.ones(3), torch.tensor([1, 1, 0]))

    assert result.ppo_kl.tolist() == pytest.approx([-0.15] * 3, abs=1e-6)


def test_gspo_keeps_samples_apart_and_survives_one_that_is_fully_masked() -> None:
    result = policy_loss(
        "gspo",
        torch.tensor([-1.0, -1.0, -1.0]),
        torch.tensor([-1.1, -1.3, -9.0]),
        torch.ones(3),
        clip=DAPO_CLIP,
        loss_mask=torch.tensor([1, 1, 0]),
        sample_index=torch.tensor([0, 1, 2]),
        sample_count=3,
    )

    assert result.ppo_kl.tolist() == pytest.approx([-0.1, -0.3, 0.0], abs=1e-6)


def test_gspo_over_two_context_parallel_ranks_uses_the_whole_sample() -> None:
    # The other rank holds two tokens of this sample, whose old - new add up to -0.3.
    additions = iter([torch.tensor([-0.3]), torch.tensor([2.0])])

    result = policy_loss(
        "gspo",
        torch.tensor([-1.0]),
        torch.tensor([-1.6]),
        torch.ones(1),
        clip=DAPO_CLIP,
        loss_mask=torch.ones(1),
        sample_index=torch.tensor([0]),
        sample_count=1,
        all_reduce=lambda own: own + next(additions),
    )

    assert result.ppo_kl.tolist() == pytest.approx([-0.3], abs=1e-6)


def test_cispo_gives_slimes_values() -> None:
    log_probs = torch.tensor([-1.0, -2.0, -0.5, -0.1])

    result = cispo_loss(PPO_KL, log_probs, ADVANTAGES, clip=DAPO_CLIP)

    assert result.pg_loss.tolist() == pytest.approx([1.0, 2.56, -0.4, -0.128], abs=1e-6)
    assert result.pg_clipfrac.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_cispo_teaches_clipped_tokens_too() -> None:
    log_probs = torch.tensor([-1.0], requires_grad=True)

    of_one_sample("cispo", log_probs, torch.tensor([-4.0]), torch.ones(1), torch.ones(1)).pg_loss.sum().backward()

    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.28])


def test_a_ratio_beyond_every_float_stays_finite() -> None:
    log_probs = torch.tensor([0.0], requires_grad=True)

    result = of_one_sample("grpo", log_probs, torch.tensor([-500.0]), torch.zeros(1), torch.ones(1))
    result.pg_loss.sum().backward()

    assert result.pg_loss.tolist() == [0.0]
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [0.0]


def test_opsm_drops_negative_tokens_of_samples_that_drifted() -> None:
    kept = off_policy_kept(
        torch.tensor([-1.2, -1.2, -1.0, -1.0]),
        torch.tensor([-1.0, -1.0, -1.0, -1.0]),
        torch.tensor([-1.0, 1.0, -1.0, 1.0]),
        loss_mask=torch.ones(4),
        sample_index=torch.tensor([0, 0, 1, 1]),
        sample_count=2,
    )

    assert kept.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_the_value_loss_is_the_larger_of_clipped_and_free() -> None:
    values, old, returns = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])

    loss, clipfrac = value_loss(values, old, returns, value_clip=0.2)

    assert loss.tolist() == pytest.approx([0.64, 0.81])  # (0.2 - 1)², (0.1 - 1)²
    assert clipfrac.tolist() == [1.0, 0.0]

"""Functions of slime's that plug-ins of the trainer call."""

from __future__ import annotations

import pytest
import torch

from slime_stages.errors import UsageError
from stages.train.slime_names import (
    all_gather_with_cp,
    compute_approx_kl,
    compute_policy_loss,
    slice_log_prob_with_cp,
)


def test_kl_and_policy_loss_are_those_of_the_objective() -> None:
    kl = compute_approx_kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.2, -1.5]), kl_loss_type="k2")
    loss, clipped = compute_policy_loss(
        torch.tensor([0.0, -0.5, 0.5, -2.0]), torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2, 0.28, eps_clip_c=3.0
    )

    assert kl.tolist() == pytest.approx([0.02, 0.125])
    assert loss.tolist() == pytest.approx([-1.0, -1.28, 0.8, 3.0])
    assert clipped.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_responses_are_whole() -> None:
    values = torch.tensor([1.0, 2.0])

    assert all_gather_with_cp(values, total_length=5, response_length=2) is values
    assert slice_log_prob_with_cp([0.5, 0.25], 5, 2) == [0.5, 0.25]
    with pytest.raises(UsageError, match="1 values are not a response of 2 tokens"):
        all_gather_with_cp(values[:1], 5, 2)

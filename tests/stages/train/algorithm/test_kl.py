"""The KL estimators against slime's values."""

from __future__ import annotations

import pytest
import torch

from slime_stages.errors import UsageError
from stages.train.algorithm.kl import KlKind, approx_kl

LOG_PROBS = torch.tensor([-1.0, -2.0, -0.5])
BASE = torch.tensor([-1.2, -1.5, -0.5])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [0.2, -0.5, 0.0]),
        ("k2", [0.02, 0.125, 0.0]),
        ("k3", [0.018731, 0.148721, 0.0]),
        ("low_var_kl", [0.018731, 0.148721, 0.0]),
    ],
)
def test_each_estimator_gives_slimes_values(kind: KlKind, expected: list[float]) -> None:
    assert approx_kl(LOG_PROBS, BASE, kind).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_importance_ratio_multiplies_before_the_clamp() -> None:
    kl = approx_kl(LOG_PROBS, BASE, "low_var_kl", torch.tensor([1.1, 0.9, 2.0]))
    assert kl.tolist() == pytest.approx([0.020604, 0.133849, 0.0], abs=1e-6)

    kl = approx_kl(torch.tensor([-2.0]), torch.tensor([-1.0]), "low_var_kl", torch.tensor([100.0]))
    assert kl.tolist() == [10.0]  # e - 2 = 0.718, times 100


def test_only_low_var_kl_is_clamped() -> None:
    log_probs, base = torch.tensor([-6.0]), torch.tensor([-1.0])

    assert approx_kl(log_probs, base, "k3").item() == pytest.approx(142.413, abs=1e-3)  # e^5 - 6
    assert approx_kl(log_probs, base, "low_var_kl").item() == 10.0


def test_a_token_the_policy_has_given_up_leaves_the_gradient_finite() -> None:
    log_probs = torch.tensor([-200.0], requires_grad=True)

    approx_kl(log_probs, torch.tensor([-1.0]), "low_var_kl").sum().backward()

    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [0.0]


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="k4") as caught:
        approx_kl(LOG_PROBS, BASE, "k4")  # type: ignore[arg-type]

    assert caught.value.hint == "one of k1, k2, k3, low_var_kl"

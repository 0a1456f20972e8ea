"""Losses that are written for slime and call its functions, in the real trainer: they take the steps that ours take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime_stages.compat import finder
from slime_stages.errors import UsageError
from stages.train.megatron import parallel
from stages.train.slime_losses import (
    calculate_log_probs_and_entropy,
    get_log_probs_and_entropy,
    get_responses,
    policy_loss_function,
)
from tests.stages.train.batches import settings, train
from tests.stages.train.losses import LOSSES
from tests.stages.train.megatron.tiny_models import save_tiny_model

HERE = "tests.slime_stages.compat.plug_ins.losses"
ARGS = settings(rollout_temperature=0.5).as_args()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    finder.install()
    return save_tiny_model("qwen3", tmp_path_factory.mktemp("qwen3"))


def custom(function: str, **more: Any) -> Any:
    return settings(loss_type="custom_loss", custom_loss_function_path=f"{HERE}.{function}", **more)


@pytest.mark.parametrize(
    "loss",
    ["gspo", "cispo", "entropy", "unbiased-kl", "per-token", "opsm", "mis", "rollout-log-probs"],
)
def test_slimes_policy_loss_called_by_a_function_is_the_policy_loss(model: Path, loss: str) -> None:
    _, plain = train(model, settings(**LOSSES[loss], micro_batch_size=2))
    _, called = train(model, custom("slimes_own", **LOSSES[loss], micro_batch_size=2))

    for mine, expected in zip(called.results, plain.results, strict=True):
        assert mine.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        assert {name: mine.metrics[name] for name in expected.metrics if name in mine.metrics} == pytest.approx(
            {name: value for name, value in expected.metrics.items() if name != "probs_diff"}, abs=1e-5
        )


def test_what_tokens_were_drawn_from_counts_in_slimes_policy_loss(model: Path) -> None:
    lengths = [2 + index % 5 for index in range(9)]
    drawn_from: dict[str, Any] = {
        "rollout_top_p_token_ids": [list(range(10)) * length for length in lengths],
        "rollout_top_p_token_offsets": [list(range(0, 10 * length + 1, 10)) for length in lengths],
    }

    _, plain = train(model, settings(rollout_top_p=0.9), **drawn_from)
    _, called = train(model, custom("slimes_own", rollout_top_p=0.9), **drawn_from)
    _, without = train(model, settings())

    assert called.results[0].grad_norm == pytest.approx(plain.results[0].grad_norm, rel=1e-4)
    assert called.results[0].grad_norm != pytest.approx(without.results[0].grad_norm, rel=1e-2)


def test_a_correction_and_a_reducer_of_the_users_count_in_slimes_policy_loss(model: Path) -> None:
    hooks = "tests.stages.train.hooks_under_test"
    flags = {
        "use_tis": True,
        "custom_tis_function_path": f"{hooks}.halve_and_drop_first",
        "custom_pg_loss_reducer_function_path": f"{hooks}.plain_sum",
    }

    _, plain = train(model, settings(**flags))
    _, called = train(model, custom("slimes_own", **flags))

    assert called.results[0].metrics["pg_loss"] == pytest.approx(plain.results[0].metrics["pg_loss"], abs=1e-5)
    assert called.results[0].metrics["mine"] == pytest.approx(7 / 8, abs=1e-6)


def test_a_correction_by_slimes_name_is_the_one_of_ours(model: Path) -> None:
    bounds = {"use_tis": True, "tis_clip": 1.2, "tis_clip_low": 0.8}
    path = "slime.backends.megatron_utils.loss.icepop_function"

    _, plain = train(model, settings(**bounds, tis_mode="icepop"))
    _, named = train(model, settings(**bounds, custom_tis_function_path=path))

    assert named.results[0].metrics == pytest.approx(plain.results[0].metrics, abs=1e-6)


def test_a_loss_put_together_from_slimes_parts_trains(model: Path) -> None:
    _, plain = train(model, settings(entropy_coef=0.0))
    _, steps = train(model, custom("clipped_with_anchor"))

    mine, expected = steps.results[0].metrics, plain.results[0].metrics
    assert {name: mine[name] for name in ("pg_loss", "entropy_loss", "pg_clipfrac")} == pytest.approx(
        {name: expected[name] for name in ("pg_loss", "entropy_loss", "pg_clipfrac")}, abs=1e-5
    )
    assert mine["loss"] == pytest.approx(mine["pg_loss"] + 0.1 * mine["anchor"], abs=1e-6)
    assert mine["anchor"] > 0


def test_a_loss_that_takes_responses_one_by_one_trains(model: Path) -> None:
    _, plain = train(model, settings(loss_type="sft_loss"))
    _, steps = train(model, custom("likelihood_and_head_mass"))

    assert steps.results[0].metrics["loss"] == pytest.approx(plain.results[0].metrics["loss"], abs=1e-5)
    assert steps.results[0].grad_norm == pytest.approx(plain.results[0].grad_norm, rel=1e-4)
    assert 4 / 96 < steps.results[0].metrics["head_mass"] < 1


def test_advantages_that_begin_with_slimes_are_trained_on(model: Path) -> None:
    _, steps = train(model, settings(custom_advantage_function_path=f"{HERE}.advantages"))

    rows, rewards = steps.columns["advantages"], steps.batch.rewards
    assert [row.tolist() for row in (rows[0], rows[1])] == [
        pytest.approx([rewards[0], 2 * rewards[0]]),
        pytest.approx([rewards[1], rewards[1], 2 * rewards[1]]),
    ]


def test_a_token_is_as_likely_as_its_row_says_at_the_temperature_of_the_rollout() -> None:
    parallel.initialize()
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    logits = 0.5 * probabilities.log()  # the temperature is 0.5
    asked: dict[str, Any] = {
        "unconcat_tokens": [torch.tensor([2, 2, 0, 1]), torch.tensor([1, 2])],
        "total_lengths": [4, 2],
        "response_lengths": [2, 1],
    }

    before = logits.clone()
    nothing, found = get_log_probs_and_entropy(logits, args=ARGS, with_entropy=True, **asked)
    nuclei = {"top_p_token_ids": [[0, 1], [2, 0]], "top_p_token_offsets": [[0, 2, 2], [0, 2]]}
    _, replayed = get_log_probs_and_entropy(logits, args=ARGS, **asked, **nuclei)
    rows = [(row.shape, tokens.tolist()) for row, tokens in get_responses(logits, args=ARGS, **asked)]

    assert len(nothing) == 0
    assert torch.equal(logits, before)
    assert [each.exp().tolist() for each in found["log_probs"]] == [pytest.approx([0.5, 0.8]), pytest.approx([0.6])]
    assert found["entropy"][0][0].item() == pytest.approx(1.5 * np.log(2))
    assert [each.exp().tolist() for each in replayed["log_probs"]] == [
        pytest.approx([2 / 3, 0.8]),  # the second token has no nucleus on record
        pytest.approx([0.75]),
    ]
    assert rows == [((2, 3), [0, 1]), ((1, 3), [2])]


def test_log_probs_may_be_those_among_a_few_tokens() -> None:
    parallel.initialize()
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    kept = torch.tensor([[True, True, False]])

    log_probs, entropy = calculate_log_probs_and_entropy(
        logits, torch.tensor([1]), None, with_entropy=True, log_prob_keep_mask=kept
    )

    assert log_probs.exp().tolist() == [[pytest.approx(1 / 3)]]
    assert entropy is not None
    assert entropy.tolist() == [pytest.approx(1.5 * np.log(2))]


def test_logits_of_whole_sequences_and_settings_of_whole_steps_are_refused() -> None:
    asked: dict[str, Any] = {
        "unconcat_tokens": [torch.tensor([2, 2, 0])],
        "total_lengths": [3],
        "response_lengths": [1],
    }
    with pytest.raises(UsageError, match=r"shape \(1, 3, 5\) are no row for each of 1 response tokens"):
        list(get_responses(torch.zeros(1, 3, 5), args=ARGS, **asked))
    with pytest.raises(UsageError, match="tis_batch_normalize is about a whole step"):
        policy_loss_function(
            settings(use_tis=True, tis_batch_normalize=True).as_args(),
            {
                **asked,
                "advantages": [torch.ones(1)],
                "loss_masks": [torch.ones(1)],
                "rollout_log_probs": [torch.zeros(1)],
            },
            torch.zeros(1, 5),
            torch.sum,
        )

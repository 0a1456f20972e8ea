"""The user's functions get what slime gives them, and what they return counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime_stages.errors import DataError
from stages.train.hooks import Hooks
from stages.train.megatron.step import Trainer
from stages.train.policy import trainer_settings
from tests.stages.train import hooks_under_test
from tests.stages.train.batches import ROLLOUTS, iteration, settings, train, trainer_of
from tests.stages.train.megatron.tiny_models import save_tiny_model

HERE = "tests.stages.train.hooks_under_test"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def calls() -> Iterator[list[tuple[Any, ...]]]:
    hooks_under_test.CALLS.clear()
    yield hooks_under_test.CALLS
    hooks_under_test.CALLS.clear()


def test_rewards_may_be_made_by_a_function_which_may_bring_a_teachers_log_probs(model: Path) -> None:
    config = settings(custom_reward_post_process_path=f"{HERE}.rewards_by_length")

    data = iteration(trainer_of(model, config), config)

    lengths = [2 + index % 5 for index in range(9)]
    assert data.raw_rewards.tolist() == lengths
    assert data.batch.rewards.tolist() == [length - 4.0 for length in lengths]
    assert data.batch.teacher_log_probs is not None
    assert data.batch.teacher_log_probs[0].tolist() == [-1.0, -1.0]


def test_training_data_may_be_made_by_a_function_and_have_columns_of_its_own(model: Path) -> None:
    config = settings(custom_convert_samples_to_train_data_path=f"{HERE}.convert")

    batch = iteration(trainer_of(model, config), config).batch

    assert batch.rewards.tolist() == [1.0] * 9
    assert batch.loss_mask_sums.tolist() == batch.response_lengths.tolist()
    assert batch.rollout_mask_sums.tolist()[4:6] == [8, 8]  # siblings of 6 and 2 tokens
    assert batch.columns["difficulty"] == [0.5 * index for index in range(9)]


def test_masks_and_advantages_may_be_changed_before_the_first_step(model: Path, calls: list[Any]) -> None:
    config = settings(rollout_data_postprocess_path=f"{HERE}.post_process")

    _, steps = train(model, config)
    _, plain = train(model, settings())

    [(_, rollout_id, names)] = calls
    assert rollout_id == 0
    assert {"tokens", "loss_masks", "log_probs", "advantages", "returns", "rollout_log_probs"} <= set(names)
    before = plain.batch.loss_mask_sums
    assert steps.batch.loss_mask_sums.tolist() == [n - 1 if n else 0 for n in before.tolist()]
    assert steps.batch.rollout_mask_sums.tolist() == plain.batch.rollout_mask_sums.tolist()
    assert steps.columns["advantages"][0].tolist() == pytest.approx([2 * plain.batch.rewards[0]] * 2)


def test_advantages_may_be_a_functions(model: Path) -> None:
    _, steps = train(model, settings(custom_advantage_function_path=f"{HERE}.advantages"))

    assert steps.column_means["advantages"] == pytest.approx(3.0 * 7 / 8)  # rollout 3 has no trained token
    assert steps.column_means["returns"] == 0.0


def test_a_custom_loss_sees_the_batch_with_the_samples_own_columns_and_is_scaled_as_the_others(
    model: Path, calls: list[Any]
) -> None:
    own: dict[str, Any] = {
        "train_metadata": [{"weight": index} for index in range(9)],
        "colour": [f"c{index}" for index in range(9)],
    }
    custom = {"loss_type": "custom_loss", "custom_loss_function_path": f"{HERE}.likelihood"}

    _, steps = train(model, settings(**custom, micro_batch_size=2), **own)
    _, plain = train(model, settings(loss_type="sft_loss"))

    assert steps.results[0].metrics["loss"] == pytest.approx(plain.results[0].metrics["loss"], abs=1e-5)
    assert steps.results[0].metrics["nll"] == pytest.approx(plain.results[0].metrics["loss"], abs=1e-5)
    assert steps.results[0].grad_norm == pytest.approx(plain.results[0].grad_norm, rel=1e-4)
    name, columns, metadata, colour = calls[0]
    assert (name, metadata, colour) == ("loss", {"weight": 0}, "c0")
    assert {"advantages", "log_probs", "loss_masks", "rollout_mask_sums", "total_lengths"} <= set(columns)


def test_a_custom_correction_changes_the_loss_and_the_mask_but_no_denominator(model: Path, calls: list[Any]) -> None:
    _, steps = train(model, settings(use_tis=True, custom_tis_function_path=f"{HERE}.halve_and_drop_first"))

    assert calls[0] == (
        "tis",
        [
            "args",
            "loss_masks",
            "pg_loss",
            "response_lengths",
            "rollout_log_probs",
            "total_lengths",
            "train_log_probs",
        ],
    )
    [result] = steps.results
    batch = steps.batch
    expected = sum(
        -batch.rewards[p] / 2 * (batch.loss_masks[p].sum() - 1) / batch.rollout_mask_sums[p]
        for p in range(9)
        if batch.loss_mask_sums[p]
    )
    assert result.metrics["pg_loss"] == pytest.approx(expected / 8, abs=1e-6)
    assert result.metrics["mine"] == pytest.approx(7 / 8, abs=1e-6)


def test_a_custom_reducer_sums_the_policy_loss_alone(model: Path) -> None:
    _, steps = train(model, settings(custom_pg_loss_reducer_function_path=f"{HERE}.plain_sum"))

    batch = steps.batch
    expected = sum(-batch.rewards[p] * batch.loss_masks[p].sum() for p in range(9)) / 8
    assert steps.results[0].metrics["pg_loss"] == pytest.approx(expected, abs=1e-5)


def test_megatrons_hooks_are_called_in_their_places(model: Path, calls: list[Any]) -> None:
    config = settings(
        num_steps_per_rollout=2,
        use_kl_loss=True,
        custom_megatron_init_path=f"{HERE}.init",
        custom_megatron_before_log_prob_hook_path=f"{HERE}.before_log_prob",
        custom_megatron_before_train_step_hook_path=f"{HERE}.before_train_step",
    )
    Hooks(config).megatron_is_ready()

    train(model, config)

    assert calls == [
        ("init", 1e-3),
        ("before_log_prob", "ref_", 1),
        ("before_log_prob", "", 1),
        ("before_train_step", 0, 0, 1, 0),
        ("before_train_step", 0, 1, 1, 4),
    ]


def test_a_function_may_make_the_model(model: Path, calls: list[Any]) -> None:
    config = settings(custom_model_provider_path=f"{HERE}.provide")

    trainer = Trainer(model, trainer_settings(config), provider=Hooks(config).find("custom_model_provider_path"))

    assert calls == [("provide", True, True)]
    assert sum(parameter.numel() for parameter in trainer.model.module.parameters()) > 1000


def test_a_function_that_returns_too_little_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(custom_convert_samples_to_train_data_path=f"{HERE}.convert")
    trainer = trainer_of(model, config)

    monkeypatch.setattr(hooks_under_test, "convert", lambda args, samples: {"tokens": [[1, 2]] * len(ROLLOUTS)})
    from slime_stages.plugins import load_function

    load_function.cache_clear()
    with pytest.raises(DataError, match="gave no response_lengths, rewards"):
        iteration(trainer, config)
    load_function.cache_clear()


def test_shapes_are_those_of_the_samples() -> None:
    assert np.bincount(ROLLOUTS).tolist() == [1, 1, 1, 1, 2, 1, 1, 1]

"""Reference, teacher, critic, frozen parameters and the optimizer's state, on a tiny model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime_stages.errors import DataError, UsageError
from stages.train.megatron.optimizer_state import reset_optimizer_state
from stages.train.megatron.packing import pack_samples
from stages.train.megatron.step import Trainer
from stages.train.megatron.value_model import value_model
from stages.train.other_models import load_model
from stages.train.policy import parameter_digest, trainer_settings
from stages.train.prepare import OLD_ACTOR, REFERENCE, TEACHER
from stages.train.steps import train_steps
from tests.stages.train.batches import iteration, keep_shifted, settings, train, trainer_of
from tests.stages.train.megatron.tiny_models import make_samples, save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3", tmp_path_factory.mktemp("qwen3"))


def test_a_copy_takes_the_models_place_and_gives_it_back_bit_for_bit(model: Path) -> None:
    trainer = trainer_of(model, settings())
    packed = [pack_samples(make_samples(0, shared=True))]
    before = trainer.log_probs(packed)[0]
    digest = parameter_digest(trainer)
    keep_shifted(trainer, REFERENCE, seed=1)

    with trainer.copies.in_place(REFERENCE):
        within = trainer.log_probs(packed)[0]

    assert not torch.allclose(within, before, atol=1e-3)
    assert torch.equal(trainer.log_probs(packed)[0], before)
    assert parameter_digest(trainer) == digest


def test_the_kl_to_the_reference_is_zero_where_it_is_the_policy_itself(model: Path) -> None:
    config = settings(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3")
    trainer = Trainer(model, trainer_settings(config))
    trainer.copies.keep(REFERENCE)

    steps = train_steps(trainer, iteration(trainer, config), config, title="train 0")

    assert steps.results[0].metrics["kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert train(model, config)[1].results[0].metrics["kl_loss"] > 1e-4


def test_the_kl_loss_pulls_the_policy_to_the_reference(model: Path) -> None:
    flags = {"use_kl_loss": True, "kl_loss_type": "k3", "disable_rewards_normalization": True, "lr": 3e-3}
    config = settings(**flags, kl_loss_coef=10.0)
    trainer = trainer_of(model, config)
    data = iteration(trainer, config)

    kl = [train_steps(trainer, data, config, title="t").results[0].metrics["kl_loss"] for _ in range(6)]

    assert kl[-1] < kl[0] / 2


def test_old_log_probs_may_be_those_of_the_weights_that_generated(model: Path) -> None:
    config = settings(keep_old_actor=True)
    trainer = trainer_of(model, config)
    data = iteration(trainer, config)
    keep_shifted(trainer, OLD_ACTOR, seed=2)

    steps = train_steps(trainer, data, config, title="train 0")

    assert abs(steps.results[0].metrics["ppo_kl"]) > 1e-3
    assert "ppo_kl" in train(model, settings())[1].results[0].metrics


def test_a_teacher_beside_the_policy_gives_the_same_as_its_log_probs_on_the_samples(model: Path) -> None:
    beside = settings(use_opd=True, opd_type="megatron", opd_teacher_load=str(model), opd_kl_coef=0.5)
    trainer = trainer_of(model, beside)
    data = iteration(trainer, beside)
    keep_shifted(trainer, TEACHER, seed=4)

    steps = train_steps(trainer, data, beside, title="train 0")

    given = settings(use_opd=True, opd_type="sglang", opd_kl_coef=0.5)
    rows: Any = steps.columns["teacher_log_probs"]
    _, told = train(model, given, teacher_log_probs=[rows[p].tolist() for p in range(9)])
    assert told.results[0].metrics == pytest.approx(steps.results[0].metrics, abs=1e-5)
    assert steps.column_means["opd_reverse_kl"] != 0
    gap = np.concatenate([steps.columns["log_probs"][p] - rows[p] for p in range(9)])
    advantages = np.concatenate([steps.columns["advantages"][p] for p in range(9)])
    rewards = np.repeat(data.batch.rewards, data.batch.response_lengths)
    assert advantages == pytest.approx(rewards - 0.5 * gap, abs=1e-5)


def test_distillation_without_a_teachers_log_probs_says_where_they_come_from(model: Path) -> None:
    with pytest.raises(DataError, match="no sample has any"):
        train(model, settings(use_opd=True, opd_type="sglang"), teacher_log_probs=[None] * 9)


def test_frozen_parameters_stay_and_patterns_that_name_nothing_are_refused(model: Path) -> None:
    config = settings(freeze_params_name_list=["word_embeddings", r"layers\.0\."])
    trainer = trainer_of(model, config)
    before = {name: tensor.detach().clone() for name, tensor in trainer.model.module.named_parameters()}

    steps = train_steps(trainer, iteration(trainer, config), config, title="train 0")

    assert steps.results[0].updated
    moved = {n for n, t in trainer.model.module.named_parameters() if not torch.equal(t, before[n])}
    assert moved
    assert all("layers.1." in name or "final_layernorm" in name for name in moved)
    with pytest.raises(UsageError, match="no parameter has 'nowhere' in its name"):
        trainer_of(model, settings(only_train_params_name_list=["nowhere"]))


def test_a_reset_optimizer_steps_as_a_new_one(model: Path) -> None:
    config = settings()
    trainer, _ = train(model, config)
    data = iteration(trainer, config)
    trainer.copies.keep("now")
    reset_optimizer_state(trainer.optimizer)
    train_steps(trainer, data, config, title="train 1")

    fresh = trainer_of(model, config)
    for (_, parameter), kept in zip(
        fresh.model.module.named_parameters(), trainer.copies._kept["now"].values(), strict=True
    ):
        parameter.data.copy_(kept)
    fresh.optimizer.reload_model_params()
    train_steps(fresh, data, config, title="train 1")

    assert parameter_digest(trainer) == parameter_digest(fresh)


def test_gradients_that_are_not_finite_refuse_the_iteration_or_leave_the_step_out(model: Path) -> None:
    bad = {"custom_advantage_function_path": "tests.stages.train.test_other_models.infinite"}
    with pytest.raises(DataError, match="gradients of step 1 are not finite"):
        train(model, settings(**bad))

    _, steps = train(model, settings(**bad, check_for_nan_in_loss_and_grad=False))

    assert not steps.results[0].updated


def infinite(args: Any, rollout_data: dict[str, Any]) -> None:
    for name in ("advantages", "returns"):
        rollout_data[name] = [torch.full((n,), math.inf) for n in rollout_data["response_lengths"]]


def critic_of(model: Path, config: Any) -> Trainer:
    return Trainer(model, trainer_settings(config), provider=value_model)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_critic_is_the_policys_transformer_with_one_number_a_token(kind: str, tmp_path: Path) -> None:
    folder = save_tiny_model(kind, tmp_path)
    config = settings(advantage_estimator="ppo")
    critic, policy = critic_of(folder, config), trainer_of(folder, config)

    [values] = critic.values([pack_samples(make_samples(0, shared=True))])

    assert values.shape == (sum(sample.response_length for sample in make_samples(0, shared=True)),)
    weights = dict(policy.model.module.named_parameters())
    others = {n: t for n, t in critic.model.module.named_parameters() if not n.startswith("output_layer")}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in others.items())
    assert len(others) >= len(weights) - 1


def test_the_critic_learns_what_comes_back_and_ppo_does_not_depend_on_the_split(model: Path) -> None:
    outcomes = []
    for split in ({"micro_batch_size": 1}, {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096}):
        config = settings(advantage_estimator="ppo", lambd=0.9, lr=3e-3, kl_coef=0.05, **split)
        trainer, critic = trainer_of(model, config), critic_of(model, config)
        data = iteration(trainer, config)
        steps = [train_steps(trainer, data, config, title="t", critic=critic) for _ in range(5)]
        outcomes.append([each.critic_results[0].metrics["value_loss"] for each in steps])
        assert steps[0].results[0].updated
        assert {"values", "advantages", "returns", "kl", "ref_log_probs"} <= steps[0].columns.keys()

    assert outcomes[0][-1] < outcomes[0][0] / 2
    assert outcomes[1] == pytest.approx(outcomes[0], abs=1e-4)


def test_the_critic_may_begin_alone(model: Path) -> None:
    config = settings(advantage_estimator="ppo", num_critic_only_steps=1)
    trainer, critic = trainer_of(model, config), critic_of(model, config)
    before = parameter_digest(trainer), parameter_digest(critic)

    steps = train_steps(trainer, iteration(trainer, config), config, title="t", critic=critic)

    assert steps.are_complete
    assert (steps.results, len(steps.critic_results)) == ([], 1)
    assert parameter_digest(trainer) == before[0]
    assert parameter_digest(critic) != before[1]


def test_a_reference_may_be_a_hugging_face_folder_or_a_checkpoint(model: Path, tmp_path: Path) -> None:
    from stages.train.megatron import checkpoint

    trainer, _ = train(model, settings())
    trained = parameter_digest(trainer)
    checkpoint.save(trainer, tmp_path, 3, background=False).wait()

    other = trainer_of(model, settings())
    first = parameter_digest(other)
    load_model(other, tmp_path, None)
    assert parameter_digest(other) == trained != first
    load_model(other, model, None)
    assert parameter_digest(other) == first
    load_model(other, tmp_path / "iter_0000003", None)
    assert parameter_digest(other) == trained

"""Settings of the trainer that follow from several of the config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from stages.train.policy import trainer_settings
from tests.slime_stages.config.settings import resolved

FALLING = {"lr": 4e-5, "lr_decay_style": "linear", "rollout_batch_size": 4, "global_batch_size": 2}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"num_rollout": 10}, 10 * 2 * 2),  # iterations x steps x rollouts of a step
        ({"num_rollout": 10, "lr_decay_iters": 5}, 5 * 2),
    ],
)
def test_the_learning_rate_has_fallen_by_the_end_of_the_run_unless_told_otherwise(
    told: dict[str, int], expected: int
) -> None:
    assert trainer_settings(resolved(**FALLING, **told).config).lr_decay_steps == expected


def test_a_constant_learning_rate_may_warm_up_for_longer_than_the_run() -> None:
    settings = trainer_settings(resolved(lr_warmup_iters=300_000, num_rollout=2).config)

    assert settings.lr_decay_steps > settings.lr_warmup_steps == 300_000 * 4


YAML = """\
megatron:
  - name: the-critic
    role: critic
    overrides: {lr: 1.0e-3, lr_warmup_iters: 2}
"""


def test_a_critic_has_settings_of_its_own_from_a_file_that_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "roles.yaml"
    path.write_text(YAML)
    config = resolved(lr=1e-5, advantage_estimator="ppo", megatron_config_path=str(path)).config
    path.unlink()

    actor, critic = (trainer_settings(config, role) for role in ("actor", "critic"))

    assert (actor.lr, actor.lr_warmup_steps) == (1e-5, 0)
    assert (critic.lr, critic.lr_warmup_steps) == (1e-3, 2 * 4)
    assert config.digest(["optimizer"]) != resolved(lr=1e-5).config.digest(["optimizer"])


def test_layers_for_prediction_are_the_policy_s_alone() -> None:
    config = resolved(advantage_estimator="ppo", mtp_num_layers=1, enable_mtp_training=True).config

    actor, critic = (trainer_settings(config, role) for role in ("actor", "critic"))

    assert (actor.mtp_num_layers, actor.enable_mtp_training) == (1, True)
    assert (critic.mtp_num_layers, critic.enable_mtp_training) == (None, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("megatron: {role: critic}", "`megatron` is no list of roles"),
        ("megatron: [{role: referee}]", "the role 'referee' is none of actor, critic"),
        ("megatron: [{role: critic}, {role: critic}]", "the role 'critic' is twice in it"),
        ("megatron: [{role: critic, args: {lr: fast}}]", "lr = 'fast': input should be a valid number"),
        ("megatron: [{role: critic, args: {weight_decai: 1}}]", "weight_decai is no setting that a role has to itself"),
    ],
)
def test_a_file_of_roles_that_means_nothing_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "roles.yaml"
    path.write_text(text)

    with pytest.raises(UsageError, match=re.escape(says)):
        resolved(megatron_config_path=str(path))


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ({"critic": {"lr": 1e-3}}, "has settings for a critic, and there is none"),
        ({"actor": {"lr": -1.0}}, "has for the actor: lr = -1.0"),
        ({"referee": {}}, "has the role referee"),
    ],
)
def test_roles_written_into_a_config_are_checked_as_well(roles: dict[str, dict[str, float]], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        resolved(megatron_roles=roles)

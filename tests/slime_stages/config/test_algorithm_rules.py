"""Settings of the loss that slime refuses together are refused, with the flag that mends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.config.sections.algorithm import Algorithm
from slime_stages.errors import UsageError
from tests.slime_stages.config.settings import resolved


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage_estimator": "reinforce_plus_plus"}, "needs advantages of mean 0 and variance 1"),
        ({"advantage_estimator": "reinforce_plus_plus_baseline"}, "needs advantages of mean 0 and variance 1"),
        ({"kl_coef": 0.1, "kl_loss_coef": 0.1, "use_kl_loss": True}, "counts the KL a second time"),
        ({"kl_loss_coef": 0.1}, "weighs a KL in the loss, and there is none"),
        ({"use_unbiased_kl": True}, "weighs a KL in the loss, and there is none"),
        ({"use_kl_loss": True, "ref_load": "/nowhere"}, "is neither a Hugging Face folder nor one of torch_dist"),
        ({"ref_update_interval": 2}, "renews a reference that nothing looks at"),
        ({"use_opd": True}, "needs to know where the teacher's log-probs come from"),
        ({"opd_type": "sglang"}, "has no effect by itself"),
        ({"use_opd": True, "opd_type": "megatron"}, "needs the teacher's weights"),
        ({"use_opd": True, "opd_type": "sglang", "opd_teacher_load": "/x"}, "is read only with use_opd"),
        ({"loss_type": "custom_loss"}, "needs a function"),
        ({"custom_loss_function_path": "a.b"}, "is not asked with this loss_type"),
        ({"disable_compute_advantages_and_returns": True}, "leaves policy_loss nothing to follow"),
        ({"loss_type": "sft_loss", "use_kl_loss": True}, "is the likelihood alone"),
        ({"num_critic_only_steps": 1}, "trains a critic, and there is none"),
        ({"use_rollout_logprobs": True, "keep_old_actor": True}, "takes those of the engine"),
        ({"tis_batch_normalize": True, "tis_level": "geometric"}, "whose weights are means already"),
        ({"use_rs": True, "rs_lower_bound": 3.0}, "is above rs_upper_bound"),
        ({"balance_by_flops": True}, "fills forward passes by computation, not by number"),
        ({"only_train_params_name_list": ["a"], "freeze_params_name_list": ["b"]}, "says it once more"),
        ({"freeze_params_name_list": ["("]}, "has (, which is no pattern"),
    ],
)
def test_settings_of_the_loss_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(**settings)

    assert message in caught.value.message


def test_a_reference_may_be_any_folder_that_holds_a_model(tmp_path: Path) -> None:
    for name in ("config.json", "latest_checkpointed_iteration.txt"):
        (tmp_path / name).write_text("{}")
        assert resolved(kl_coef=0.1, ref_load=str(tmp_path)).config.algorithm.needs_reference
        (tmp_path / name).unlink()


def test_the_reference_is_renewed_after_every_so_many_iterations() -> None:
    algorithm = Algorithm(use_kl_loss=True, ref_update_interval=2)

    assert [algorithm.reference_version(iteration) for iteration in range(6)] == [0, 0, 2, 2, 4, 4]
    assert Algorithm(use_kl_loss=True).reference_version(5) == 0


def test_settings_that_came_later_leave_the_digest_of_older_runs_alone() -> None:
    assert set(Algorithm().as_json()) == {
        "advantage_estimator",
        "calculate_per_token_loss",
        "disable_grpo_std_normalization",
        "disable_rewards_normalization",
        "entropy_coef",
        "eps_clip",
        "eps_clip_c",
        "eps_clip_high",
        "null_reward",
        "tis_clip",
        "tis_clip_low",
        "use_rollout_logprobs",
        "use_tis",
    }
    assert "kl_coef" in Algorithm(kl_coef=0.1).as_json()


def test_plug_ins_see_what_follows_from_the_settings() -> None:
    args = resolved(loss_type="sft_loss").config.as_args()

    assert args.compute_advantages_and_returns is False
    assert args.use_critic is False
    assert resolved(advantage_estimator="ppo").config.as_args().use_critic is True

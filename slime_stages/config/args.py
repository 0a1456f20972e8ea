"""The config as plug-ins see it: one flat namespace with the names that slime's `args` has."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from slime_stages.config.fields import suggestion
from slime_stages.config.model import Config

FIXED: dict[str, Any] = {
    "buffer_filter_path": None,
    "colocate": False,
    "custom_convert_samples_to_train_data_path": None,
    "custom_eval_rollout_log_function_path": None,
    "custom_reward_post_process_path": None,
    "custom_rollout_log_function_path": None,
    "data_source_path": None,
    "debug_rollout_only": False,
    "debug_train_only": False,
    "dynamic_sampling_filter_path": None,
    "eval_config": None,
    "eval_custom_rm_path": None,
    "eval_max_context_len": None,
    "eval_max_prompt_len": None,
    "eval_min_new_tokens": None,
    "gamma": 1.0,
    "kl_coef": 0.0,
    "kl_loss_coef": 0.0,
    "lambd": 1.0,
    "load": None,
    "load_debug_rollout_data": None,
    "log_multi_turn": False,
    "log_passrate": False,
    "log_probs_chunk_size": -1,
    "loss_type": "policy_loss",
    "mask_offpolicy_in_partial_rollout": False,
    "model_name": None,
    "multimodal_keys": None,
    "normalize_advantages": False,
    "num_epoch": None,
    "opd_type": None,
    "partial_rollout": False,
    "ref_load": None,
    "rollout_all_samples_process_path": None,
    "rollout_data_postprocess_path": None,
    "rollout_function_path": None,
    "rollout_global_dataset": True,
    "rollout_num_gpus": None,
    "rollout_sample_filter_path": None,
    "save": None,
    "save_debug_rollout_data": None,
    "start_rollout_id": None,
    "train_backend": "megatron",
    "use_critic": False,
    "use_kl_loss": False,
    "use_opd": False,
    "use_opsm": False,
    "use_rollout_entropy": False,
    "use_rollout_routing_replay": False,
    "use_routing_replay": False,
    "use_tensorboard": False,
    "use_wandb": False,
}
"""slime's settings that have only this value here: plug-ins ask for them."""


class Args(Namespace):
    """slime's `args`. Any `sglang_NAME` or `router_NAME` that nobody set is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("sglang_", "router_")):
            return None
        hint = suggestion(name, list(vars(self)), how="; did you mean `{}`?") or ""
        raise AttributeError(f"args has no `{name}`{hint}")


def args_of(config: Config) -> Args:
    values = {name: _mutable(value) for name, value in config.flat().items()}
    values |= {f"sglang_{name}": value for name, value in values.pop("sglang").items()}
    values |= {f"router_{name}": value for name, value in values.pop("router").items()}
    prompt_data = values["prompt_data"]
    algorithm, rollout = config.algorithm, config.rollout
    return Args(
        **FIXED
        | values
        | {
            "prompt_data": prompt_data[0] if len(prompt_data) == 1 else prompt_data,
            "grpo_std_normalization": algorithm.grpo_std_normalization,
            "rewards_normalization": algorithm.rewards_normalization,
            "over_sampling_batch_size": rollout.rollout_batch_size,
            "rollout_external": config.serving.serving_mode == "external",
            "log_probs_max_tokens_per_gpu": config.train.max_tokens_per_gpu,
        }
    )


def _mutable(value: Any) -> Any:
    """Lists and fresh tables, as argparse gives them: plug-ins change them, and must not change the config."""
    if isinstance(value, tuple | list):
        return [_mutable(item) for item in value]
    return {key: _mutable(item) for key, item in value.items()} if isinstance(value, dict) else value

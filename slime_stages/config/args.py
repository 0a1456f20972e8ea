"""The config as plug-ins see it: one flat namespace with the names that slime's `args` has."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from slime_stages.config.eval_dataset import resolved_datasets
from slime_stages.config.fields import suggestion
from slime_stages.config.model import Config

FIXED: dict[str, Any] = {
    "allgather_cp": False,
    "check_weight_update_equal": False,
    "ci_disable_kl_checker": False,
    "ci_load_grad_norm": None,
    "ci_save_grad_norm": None,
    "ci_test": False,
    "ci_train_rollout_logprob_abs_diff_threshold": 0.1,
    "colocate": False,
    "custom_update_weight_post_write_path": None,
    "data_pad_size_multiplier": 128,
    "debug_rollout_only": False,
    "debug_train_only": False,
    "distributed_backend": "nccl",
    "distributed_timeout_minutes": 10,
    "dump_details": None,
    "fetch_trajectory_retry_times": -1,
    "freeze_indexer": False,
    "http_proxy": None,
    "load": None,
    "load_debug_rollout_data": None,
    "load_debug_rollout_data_subsample": None,
    "load_forge_rollout_data": None,
    "log_correct_samples": False,
    "log_multi_turn": False,
    "log_reward_category": None,
    "megatron_deepgemm_forward_layers": None,
    "megatron_deepgemm_forward_modules": None,
    "megatron_deepgemm_moe_forward_layers": None,
    "megatron_deepgemm_moe_forward_modules": None,
    "memory_recorder": "torch",
    "memory_snapshot_dir": ".",
    "memory_snapshot_num_steps": None,
    "min_batch_collection_ratio": 1,
    "model_name": None,
    "no_save_optim": False,
    "offload": False,
    "offload_rollout": False,
    "offload_train": False,
    "padded_vocab_size": None,
    "profile_target": ["train_overall"],
    "qwen_gdn_backend": "fla",
    "recompute_loss_function": False,
    "record_memory_history": False,
    "release_train": False,
    "rollout_buffer_url": None,
    "rollout_data_transport": "object-store",
    "rollout_task_type": "math",
    "save": None,
    "save_debug_rollout_data": None,
    "save_debug_train_data": None,
    "save_hf": None,
    "start_rollout_id": None,
    "train_backend": "megatron",
    "train_env_vars": {},
    "update_weight_buffer_size": 536870912,
    "update_weight_delta_checksum": "xxh3-128",
    "update_weight_delta_encoding": "xor",
    "update_weight_disk_dir": None,
    "update_weight_disk_keep_files": False,
    "update_weight_local_checkpoint_dir": None,
    "update_weight_mode": "full",
    "update_weight_transport": "disk",
    "update_weights_interval": 1,
    "use_distributed_post": False,
    "use_rollout_entropy": False,
    "use_stateless_adam": False,
    "wandb_key": None,
    "wandb_random_suffix": True,
}
"""slime's settings that have only this value here: plug-ins ask for them. A setting of the same name wins."""


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
    custom = _mutable(values.pop("custom_config"))
    values["eval_datasets"] = _eval_datasets(config)
    values |= {f"router_{name}": value for name, value in values.pop("router").items()}
    values = {**values.pop("megatron"), **values}
    prompt_data = values["prompt_data"]
    algorithm, rollout = config.algorithm, config.rollout
    return Args(
        **_mutable(FIXED)
        | values
        | {
            "prompt_data": prompt_data[0] if len(prompt_data) == 1 else prompt_data,
            "grpo_std_normalization": algorithm.grpo_std_normalization,
            "rewards_normalization": algorithm.rewards_normalization,
            "compute_advantages_and_returns": algorithm.computes_advantages,
            "use_critic": algorithm.uses_critic,
            "over_sampling_batch_size": rollout.over_sampling_batch_size or rollout.rollout_batch_size,
            "rollout_global_dataset": config.data.rollout_global_dataset,
            "rollout_external": config.serving.serving_mode == "external",
            "log_probs_max_tokens_per_gpu": config.train.max_tokens_per_gpu,
            "eval_function_path": config.eval.eval_function_path or config.plugins.rollout_function_path,
        }
        | custom
    )


def _eval_datasets(config: Config) -> list[Namespace]:
    """As slime's `EvalDatasetConfig`s: with a name, and the settings' values where a set has none of its own."""
    return [
        Namespace(name=name, **{key: _mutable(value) for key, value in dataset})
        for name, dataset in resolved_datasets(config).items()
    ]


def _mutable(value: Any) -> Any:
    """Lists and fresh tables, as argparse gives them: plug-ins change them, and must not change the config."""
    if isinstance(value, tuple | list):
        return [_mutable(item) for item in value]
    return {key: _mutable(item) for key, item in value.items()} if isinstance(value, dict) else value

"""Every kind of loss, small. Run under torchrun with two processes: a step of each, in every layout that matters."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as distributed

from stages.train.steps import Steps
from tests.stages.train.batches import settings, train
from tests.stages.train.megatron.groups import leave_groups

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gspo": {"advantage_estimator": "gspo"},
    "cispo": {"advantage_estimator": "cispo", "eps_clip": 1.0, "eps_clip_high": 4.0},
    "reinforce": {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True, "kl_coef": 0.1},
    "reinforce-baseline": {"advantage_estimator": "reinforce_plus_plus_baseline", "normalize_advantages": True},
    "whitened": {"normalize_advantages": True},
    "entropy": {"entropy_coef": 0.01},
    "kl-loss": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"},
    "unbiased-kl": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k2", "use_unbiased_kl": True},
    "per-token": {"calculate_per_token_loss": True, "use_kl_loss": True, "kl_loss_coef": 0.1},
    "opsm": {"use_opsm": True, "opsm_delta": 0.0, "num_steps_per_rollout": 2},
    "tis": {"use_tis": True, "tis_clip": 1.2, "tis_clip_low": 0.8},
    "icepop": {"use_tis": True, "tis_clip": 1.2, "tis_clip_low": 0.8, "tis_mode": "icepop"},
    "mis": {"use_tis": True, "tis_level": "sequence", "tis_mode": "mask", "tis_clip": 2.0, "tis_clip_low": 0.5},
    "mis-normalized": {
        "use_tis": True,
        "tis_mode": "truncate",
        "tis_batch_normalize": True,
        "use_rs": True,
        "rs_level": "geometric",
        "rs_lower_bound": 0.9,
        "rs_upper_bound": 1.1,
        "rs_veto_threshold": 0.5,
        "get_mismatch_metrics": True,
    },
    "rollout-log-probs": {"use_rollout_logprobs": True},
    "distilled": {"use_opd": True, "opd_type": "sglang"},
    "ppo": {"advantage_estimator": "ppo", "lambd": 0.9, "num_steps_per_rollout": 2},
    "sft": {"loss_type": "sft_loss"},
    "off-policy": {"num_steps_per_rollout": 4},
    "mtp": {"mtp_num_layers": 2, "enable_mtp_training": True},
}


SPLITS: dict[str, dict[str, Any]] = {
    "data": {},
    "tensor": {"tensor_model_parallel_size": 2},
    "sequence": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pipeline": {"pipeline_model_parallel_size": 2},
    "virtual": {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    "context": {"context_parallel_size": 2},
    "expert": {"expert_model_parallel_size": 2},
}
LAYOUTS = {
    **dict.fromkeys(LOSSES, ("data",)),
    **dict.fromkeys(("gspo", "entropy"), ("data", "tensor", "context")),
    "ppo": ("data", "tensor", "pipeline"),
    "grpo": tuple(SPLITS),
    "mtp": ("data", "tensor", "sequence", "pipeline"),
}
"""Those where something is different for the loss."""


MODELS = {"qwen3": 2, "qwen3_moe": 2, "mistral": 4, "mimo": 2}
"""Layers of each."""


def model_of(loss: str, layout: str = "data") -> str:
    if loss == "mtp":
        return "mimo"
    return {"expert": "qwen3_moe", "virtual": "mistral"}.get(layout, "qwen3")


def measured(steps: Steps) -> dict[str, Any]:
    """What two ways to take the same steps must agree on."""
    results = [{**result.metrics, "grad_norm": result.grad_norm} for result in steps.results + steps.critic_results]
    return {"means": steps.column_means, "steps": results}


def main(models: Path, output: Path) -> None:
    found = {}
    for layout, flags in SPLITS.items():
        leave_groups()
        for name, loss in LOSSES.items():
            if layout in LAYOUTS[name]:
                packed = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 32}
                config = settings(**loss, **flags, **packed, actor_num_gpus_per_node=2)
                found[f"{name}-{layout}"] = measured(train(models / model_of(name, layout), config)[1])
    if distributed.get_rank() == 0:
        output.write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

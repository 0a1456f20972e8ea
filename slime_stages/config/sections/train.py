"""[train]: the trainer's processes and how samples become optimizer steps."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from slime_stages.config.types import Section


class Train(Section):
    title: ClassVar[str] = "the trainer's processes and how samples become optimizer steps"
    digested_if_set: ClassVar[frozenset[str]] = frozenset(
        {
            "balance_by_flops",
            "only_train_params_name_list",
            "freeze_params_name_list",
            "custom_megatron_init_path",
            "custom_megatron_before_log_prob_hook_path",
            "custom_megatron_before_train_step_hook_path",
            "custom_model_provider_path",
        }
    )

    actor_num_nodes: PositiveInt = 1
    """Nodes of the train job."""

    actor_num_gpus_per_node: PositiveInt = 1
    """Trainer processes on each node: one per GPU, or on a machine without one any number."""

    tensor_model_parallel_size: PositiveInt = 1
    """Processes that share each layer's weights."""

    global_batch_size: PositiveInt | None = None
    """Rollouts in one optimizer step. Without it, by `num_steps_per_rollout`."""

    num_steps_per_rollout: PositiveInt | None = None
    """Optimizer steps that an iteration's samples are cut into; 1 unless `global_batch_size` says otherwise."""

    micro_batch_size: PositiveInt = 1
    """Samples in one forward pass, where `use_dynamic_batch_size` is off."""

    use_dynamic_batch_size: bool = False
    """Fill each forward pass up to `max_tokens_per_gpu` with samples of different lengths."""

    max_tokens_per_gpu: PositiveInt | None = None
    """Most tokens of one forward pass with `use_dynamic_batch_size`; a longer sample goes alone."""

    balance_data: bool = False
    """Give every process about the same amount of computation, not just of samples."""

    balance_by_flops: bool = False
    """Fill forward passes by computation, not by tokens, and share that out evenly; with `use_dynamic_batch_size`."""

    seed: int = 1234
    """Seed of the trainer."""

    bf16: bool = False
    """Train in bfloat16 with float32 master weights; in float32 without it."""

    use_distributed_optimizer: bool = False
    """Cut the optimizer's state over the data-parallel processes."""

    only_train_params_name_list: tuple[str, ...] | None = None
    """Train only parameters whose Megatron name one of these patterns is found in."""

    freeze_params_name_list: tuple[str, ...] | None = None
    """Train all but those."""

    custom_megatron_init_path: str | None = None
    """`module.function` called in every trainer process once Megatron is ready."""

    custom_megatron_before_log_prob_hook_path: str | None = None
    """`module.function` called before log-probs are computed, with `ref_`, `teacher_` or nothing for the policy."""

    custom_megatron_before_train_step_hook_path: str | None = None
    """`module.function` called before every optimizer step."""

    custom_model_provider_path: str | None = None
    """`module.function` that makes the model."""

    @property
    def process_count(self) -> int:
        return self.actor_num_nodes * self.actor_num_gpus_per_node

    @property
    def data_parallel_size(self) -> int:
        return self.process_count // self.tensor_model_parallel_size

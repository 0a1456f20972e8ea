"""[train]: the trainer's processes and how samples become optimizer steps."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from slime_stages.config.types import Options, Section


class Train(Section):
    title: ClassVar[str] = "the trainer's processes and how samples become optimizer steps"
    digested_if_set: ClassVar[frozenset[str]] = frozenset(
        {
            "balance_by_flops",
            "log_probs_chunk_size",
            "only_train_params_name_list",
            "freeze_params_name_list",
            "custom_megatron_init_path",
            "custom_megatron_before_log_prob_hook_path",
            "custom_megatron_before_train_step_hook_path",
            "custom_model_provider_path",
            "sequence_parallel",
            "pipeline_model_parallel_size",
            "num_layers_per_virtual_pipeline_stage",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules",
            "use_routing_replay",
            "use_rollout_routing_replay",
            "mtp_num_layers",
            "enable_mtp_training",
            "mtp_loss_scaling_factor",
            "megatron",
        }
    )

    actor_num_nodes: PositiveInt = 1
    """Nodes of the train job."""

    actor_num_gpus_per_node: PositiveInt = 1
    """Trainer processes on each node: one per GPU, or on a machine without one any number."""

    tensor_model_parallel_size: PositiveInt = 1
    """Processes that share each layer's weights."""

    sequence_parallel: bool = False
    """Between the layers, give each of these processes a part of the tokens only: less memory; with experts, needed."""

    pipeline_model_parallel_size: PositiveInt = 1
    """Processes with a part of the layers each, one after the other."""

    num_layers_per_virtual_pipeline_stage: PositiveInt | None = None
    """Cut each such part into pieces of so many layers that take turns, so that processes wait less for each other."""

    decoder_first_pipeline_num_layers: PositiveInt | None = None
    """Layers of the first of them, which also has the embeddings; the others share the rest evenly."""

    decoder_last_pipeline_num_layers: PositiveInt | None = None
    """Layers of the last of them, which also has the output layer."""

    context_parallel_size: PositiveInt = 1
    """Processes with a part of each sequence's tokens, for sequences that are too long for one."""

    expert_model_parallel_size: PositiveInt = 1
    """Processes with a part of the experts each; the same ones are data parallel in everything else."""

    expert_tensor_parallel_size: PositiveInt | None = None
    """Processes that share the weights of each expert; `tensor_model_parallel_size` without it."""

    recompute_granularity: Literal["full", "selective"] | None = None
    """To save memory, run a layer forward again in the backward pass: `full`; or the `recompute_modules` of it only."""

    recompute_method: Literal["uniform", "block"] | None = None
    """With `full`: `uniform`, all layers in groups of `recompute_num_layers`; `block`: that many layers, one by one."""

    recompute_num_layers: PositiveInt | None = None
    """See `recompute_method`."""

    recompute_modules: tuple[str, ...] | None = None
    """With `selective`: Megatron's names, such as `core_attn`, `mlp`, `moe`, `layernorm`."""

    megatron: Options = Field(default={})
    """Fields of Megatron-Core's configs of the model, the gradient buckets and the optimizer, by their names there."""

    use_routing_replay: bool = False
    """Train each token through the experts that it went to when its old log-probs were computed."""

    use_rollout_routing_replay: bool = False
    """Train each token through the experts that it went to in the engine, which then hands them out."""

    mtp_num_layers: PositiveInt | None = None
    """Layers for multi-token prediction (MTP) to load, of a model that has them; without it they stay as they are."""

    enable_mtp_training: bool = False
    """Train these layers, and nothing else by them, to predict the response tokens further ahead."""

    mtp_loss_scaling_factor: NonNegativeFloat = 0.2
    """What their loss, the mean over the layers, is multiplied by."""

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

    log_probs_chunk_size: int = -1
    """Response tokens whose logits are in memory at a time; they are computed twice then. All of a forward pass if it
    is not above 0."""

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
    def model_parallel_size(self) -> int:
        """Processes that share one copy of the model and its tokens."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def data_parallel_size(self) -> int:
        return self.process_count // self.model_parallel_size

    @property
    def replays_routing(self) -> bool:
        return self.use_routing_replay or self.use_rollout_routing_replay

"""What stands for slime's modules and their names: `module:name` of ours, looked up when a plug-in asks.

Names are those that public plug-ins import. Modules that slime has moved have both places. What is named in
annotations alone is what our `args` and hooks have in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

HERE = "slime_stages.compat"
GRADERS = "slime_stages.rewards.graders"


def _of(module: str, names: Iterable[str] | str) -> dict[str, str]:
    """Names that ours has too."""
    return {name: f"{module}:{name}" for name in (names.split() if isinstance(names, str) else names)}


_GENERATION = _of(
    f"{HERE}.generation", "GenerateState generate generate_and_rm generate_and_rm_group get_model_url"
) | _of(
    f"{HERE}.rollout_loop",
    "abort eval_rollout eval_rollout_single_dataset generate_rollout generate_rollout_async",
)
_HTTP = _of(
    f"{HERE}.http",
    "post get init_http_client close_http_client get_host_info get_rollout_num_engines is_port_available "
    "find_available_port",
)
_FILTERS = _of("slime_stages.generation.filters", "DynamicFilterOutput") | _of(
    f"{HERE}.filters", "MetricGatherer call_dynamic_filter should_drop_dynamic_filter_output"
)
_METRICS = _of(
    f"{HERE}.metrics",
    "compression_ratio compute_pass_rate compute_rollout_step compute_statistics dict_add_prefix has_repetition",
)
_BOXES = _of(f"{HERE}.grading", "last_boxed_only_string remove_boxed")
_GRADERS = (
    _of("slime_stages.rewards.hub", "async_rm batched_async_rm")
    | _of(f"{HERE}.grading", "remote_rm f1_score grade_answer_verl compute_gpqa_reward compute_ifbench_reward")
    | {
        "compute_score_dapo": f"{HERE}.grading:compute_score",
        "extract_boxed_answer": f"{GRADERS}.boxed:last_boxed",
        "get_deepscaler_rule_based_reward": f"{GRADERS}.deepscaler:grade_deepscaler",
    }
)
_TRACES = _of(
    "slime_stages.trace.handles", "TRACE_VERSION TraceHandle bind_trace bind_trace_carrier export_trace import_trace"
) | _of(
    "slime_stages.trace.spans",
    "build_sglang_meta_trace_attrs trace_event trace_function trace_next_attempt trace_span",
)
_SAMPLE_METRICS = _of("stages.rollout.slime_names", "compute_metrics_from_samples compute_perf_metrics_from_samples")
_ADDRESSES = _of(f"{HERE}.http", "get_current_node_ip get_free_port")

_TRAINER = "stages.train.slime_names"
_LOGITS = "stages.train.slime_losses"
_CONTEXT_PARALLEL = _of(_TRAINER, "all_gather_with_cp get_sum_of_sample_mean slice_log_prob_with_cp")
_KL_AND_CLIP = _of(_TRAINER, "compute_approx_kl compute_policy_loss")
_AGENT = "slime_stages.agent"
_ADAPTERS = _of(f"{_AGENT}.adapters", "AnthropicAdapter BaseAdapter OpenAIAdapter")
_HARNESS = _of(f"{_AGENT}.harness.base", "BaseHarness HarnessContext")

NAMES: dict[str, dict[str, str]] = {
    "agent.adapters": _ADAPTERS,
    "agent.adapters.anthropic": _ADAPTERS,
    "agent.adapters.common": _ADAPTERS | _of(f"{_AGENT}.trajectory", "TurnRecord"),
    "agent.adapters.openai": _ADAPTERS,
    "agent.aiohttp_threaded": _of(f"{_AGENT}.adapters", "FilteredAccessLogger run_app_in_thread"),
    "agent.harness": _HARNESS
    | _of(f"{_AGENT}.harness.claude_code", "ClaudeCodeHarness")
    | _of(f"{_AGENT}.harness.codex", "CodexHarness"),
    "agent.harness.claude_code": _of(f"{_AGENT}.harness.claude_code", "ClaudeCodeHarness"),
    "agent.harness.codex": _of(f"{_AGENT}.harness.codex", "CodexHarness"),
    "agent.harness.common": _HARNESS,
    "agent.parsing": _of(f"{HERE}.parsing", "ParsedModelOutput parse_model_output parse_tool_uses parse_xml_tool_uses"),
    "agent.sandbox": _of(f"{HERE}.sandboxes", "E2BSandbox")
    | _of(f"{_AGENT}.sandbox.protocol", "Sandbox")
    | _of(f"{_AGENT}.sandbox.detached", "exec_and_wait")
    | _of(f"{_AGENT}.harness.base", "ensure_agent_user"),
    "agent.trajectory": _of(f"{_AGENT}.trajectory", "TrajectoryManager TurnRecord"),
    "backends.megatron_utils.cp_utils": _CONTEXT_PARALLEL,
    "backends.megatron_utils.loss": _CONTEXT_PARALLEL
    | _KL_AND_CLIP
    | _of(_TRAINER, "icepop_function vanilla_tis_function")
    | _of(
        _LOGITS,
        "get_log_probs_and_entropy get_responses get_rollout_top_p_logprob_kwargs policy_loss_function "
        "sft_loss_function",
    ),
    "observability.metric_utils": _METRICS,
    "observability.rollout_metrics": _SAMPLE_METRICS,
    "observability.trace_utils": _TRACES,
    "observability.logging_utils": _of(f"{HERE}.logging", "configure_logger finish_tracking init_tracking log"),
    "ray.rollout": _SAMPLE_METRICS,
    "rollout.base_types": _of("slime_stages.generation.functions", "RolloutFnTrainOutput RolloutFnEvalOutput")
    | _of(f"{HERE}.rollout_loop", "apply_rollout_sample_filter call_rollout_fn")
    | {"iter_samples": "slime_stages.generation.functions:flat"},
    "rollout.data_source": _of(
        f"{HERE}.data_sources", "DataSource RolloutDataSource RolloutDataSourceWithBuffer pop_first"
    ),
    "rollout.filter_hub.base_types": _FILTERS,
    "rollout.filter_hub.dynamic_sampling_filters": _of(
        "slime_stages.generation.filters", "check_reward_nonzero_std check_reward_nonzero_std_with_fallback"
    ),
    "rollout.fully_async_rollout": {"generate_rollout_fully_async": f"{HERE}.rollout_loop:generate_rollout"},
    "rollout.on_policy_distillation": _of(f"{HERE}.distillation", "post_process_rewards reward_func"),
    "rollout.rm_hub": _GRADERS,
    "rollout.rm_hub.deepscaler": {
        "get_deepscaler_rule_based_reward": f"{GRADERS}.deepscaler:grade_deepscaler",
    },
    "rollout.rm_hub.f1": {"f1_score": f"{HERE}.grading:f1_score", "normalize_answer": f"{GRADERS}.f1:normalise"},
    "rollout.rm_hub.gpqa": _of(f"{HERE}.grading", "compute_gpqa_reward"),
    "rollout.rm_hub.ifbench": _of(f"{HERE}.grading", "compute_ifbench_reward"),
    "rollout.rm_hub.math_dapo_utils": _BOXES
    | _of(f"{HERE}.grading", "compute_score")
    | {"normalize_final_answer": f"{GRADERS}.dapo:normalise"},
    "rollout.rm_hub.math_utils": _BOXES
    | _of(f"{HERE}.grading", "grade_answer_mathd grade_answer_sympy grade_answer_verl")
    | {"extract_answer": f"{GRADERS}.boxed:last_boxed", "extract_boxed_answer": f"{GRADERS}.boxed:last_boxed"},
    "rollout.sample_hooks": _of(f"{HERE}.sample_hooks", "apply_rollout_sample_hooks"),
    "rollout.sft_rollout": _of("slime_stages.generation.sft", "generate_rollout"),
    "rollout.sglang_rollout": _GENERATION | _of("slime_stages.rewards.hub", "async_rm batched_async_rm"),
    "rollout.sglang_streaming_rollout": {"generate_streaming": f"{HERE}.generation:generate"},
    "utils.async_utils": _of(f"{HERE}.event_loop", "AsyncLoopThread get_async_loop run"),
    "utils.data": _of(f"{HERE}.datasets", "Dataset filter_long_prompt read_file"),
    "utils.eval_config": {"EvalDatasetConfig": "argparse:Namespace"},
    "utils.http_utils": _HTTP | _ADDRESSES,
    "utils.logging_utils": _of(f"{HERE}.logging", "configure_logger finish_tracking init_tracking log"),
    "utils.mask_utils": _of(f"{HERE}.masks", "MultiTurnLossMaskGenerator get_response_lengths"),
    "utils.metric_utils": _METRICS,
    "utils.misc": _ADDRESSES
    | _of("slime_stages.plugins", "load_function")
    | _of(f"{HERE}.singletons", "SingletonMeta"),
    "utils.ppo_utils": _KL_AND_CLIP
    | _of(
        _TRAINER,
        "compute_cispo_loss compute_gspo_kl get_advantages_and_returns get_advantages_and_returns_batch "
        "get_grpo_returns get_reinforce_plus_plus_baseline_advantages get_reinforce_plus_plus_returns",
    )
    | _of(_LOGITS, "calculate_log_probs_and_entropy compute_entropy_from_logits compute_log_probs"),
    "utils.processing_utils": _of(
        f"{HERE}.processing",
        "build_processor_kwargs encode_image_for_rollout_engine load_processor load_tokenizer process_vision_info",
    ),
    "utils.trace_utils": _TRACES,
    "utils.types": _of("slime_stages.sample", "Sample")
    | _of("slime_stages.data.counters", "PrefixCacheInfo SpecInfo")
    | {"RolloutBatch": "builtins:dict"},
}
"""slime's module → its name → ours."""

_OTHER_TRAINER = "the trainer is none of slime's; functions that it calls are in docs/training.md"
ABSENT: dict[str, str] = {
    "backends": _OTHER_TRAINER,
    "ray": "nothing runs in Ray here: stages are programs that read and write files",
    "utils.arguments": "settings are those of the run, which functions get as `args`; see --custom-config-path",
    "utils.distributed_utils": _OTHER_TRAINER,
    "utils.wandb_utils": "`slime.utils.logging_utils.log` tells whatever follows the run",
}
"""slime's module → why there is nothing to put in its place, where names of it are asked for that we lack."""

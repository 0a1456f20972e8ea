"""Values that follow from others where nobody gave them, so that a frozen config says everything a stage reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_stages.config.hooks import FULLY_ASYNC
from slime_stages.config.model import Config

FALLBACKS = {
    "eval_input_key": "input_key",
    "eval_label_key": "label_key",
    "eval_tool_key": "tool_key",
    "eval_temperature": "rollout_temperature",
    "eval_top_p": "rollout_top_p",
    "eval_top_k": "rollout_top_k",
    "eval_max_response_len": "rollout_max_response_len",
    "eval_reward_key": "reward_key",
    "eps_clip_high": "eps_clip",
}
"""A setting left out, and the one it copies."""


def derive(config: Config, sources: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    """The config filled in, and the sources of what was filled in."""
    values = config.flat()
    changes: dict[str, tuple[Any, str]] = {
        name: (values[origin], origin)
        for name, origin in FALLBACKS.items()
        if values[name] is None and values[origin] is not None
    }
    changes |= (
        _streaming(config)
        | _context(config)
        | _single_sample(config)
        | _serving_mode(config, sources)
        | _batches(config)
    )

    updated = {}
    for section_name in type(config).model_fields:
        section = config.section(section_name)
        own = {name: value for name, (value, _) in changes.items() if name in type(section).model_fields}
        if own:
            updated[section_name] = section.model_copy(update=own)
    derived = {name: f"derived from {origin}" for name, (_, origin) in changes.items()}
    return config.model_copy(update=updated), derived


def _streaming(config: Config) -> dict[str, tuple[Any, str]]:
    is_asked = config.plugins.rollout_function_path == FULLY_ASYNC and not config.rollout.rollout_streaming
    return {"rollout_streaming": (True, "rollout_function_path")} if is_asked else {}


def _context(config: Config) -> dict[str, tuple[Any, str]]:
    longest = config.rollout.rollout_max_context_len
    if longest is None or longest < 2 or config.data.rollout_max_prompt_len is not None:
        return {}
    return {"rollout_max_prompt_len": (longest - 1, "rollout_max_context_len")}


def _single_sample(config: Config) -> dict[str, tuple[Any, str]]:
    """One sample has no standard deviation."""
    if config.rollout.n_samples_per_prompt > 1 or config.algorithm.disable_grpo_std_normalization:
        return {}
    return {"disable_grpo_std_normalization": (True, "n_samples_per_prompt")}


def _serving_mode(config: Config, sources: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    if not config.serving.rollout_external_engine_addrs or sources["serving_mode"] != "default":
        return {}
    return {"serving_mode": ("external", "rollout_external_engine_addrs")}


def _batches(config: Config) -> dict[str, tuple[Any, str]]:
    """Optimizer steps times their size is the number of rollouts; where it does not come out even, `checks` says so."""
    total, train = config.samples_per_iteration, config.train
    counts = "rollout_batch_size and n_samples_per_prompt"
    if train.global_batch_size is None and train.num_steps_per_rollout is None:
        return {"global_batch_size": (total, counts), "num_steps_per_rollout": (1, counts)}
    if train.global_batch_size is None and train.num_steps_per_rollout is not None:
        return {"global_batch_size": (max(1, total // train.num_steps_per_rollout), "num_steps_per_rollout")}
    if train.num_steps_per_rollout is None and train.global_batch_size is not None:
        return {"num_steps_per_rollout": (max(1, total // train.global_batch_size), "global_batch_size")}
    return {}

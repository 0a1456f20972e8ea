"""What functions that log an iteration's samples call of slime's, by slime's names and keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from slime_stages.compat.metrics import compute_statistics, dict_add_prefix, has_repetition
from slime_stages.sample import Sample
from stages.rollout.metrics import rollout_metrics

Metrics = dict[str, float | None]
PREFIX = "rollout/"


def compute_metrics_from_samples(args: Any, samples: Sequence[Sample]) -> Metrics:
    """Of response lengths, truncation, prefix caches and drafts, without a prefix; prompts with one reward by that."""
    told = rollout_metrics(samples, seconds=0.0)
    repeated = sum(has_repetition(sample.response) for sample in samples)
    return {
        **{key.removeprefix(PREFIX): value for key, value in told.items() if key.startswith(PREFIX)},
        **({} if args.advantage_estimator == "ppo" else _zero_std_counts(args, samples)),
        "repetition_frac": repeated / len(samples) if samples else 0.0,
    }


def compute_perf_metrics_from_samples(args: Any, samples: Sequence[Sample], rollout_time: float | None) -> Metrics:
    """Tokens a second, with those that a tool wrote and without (`effective_`); nothing where no time is known."""
    if not rollout_time or not samples:
        return {}
    pauses = [sample.non_generation_time for sample in samples]
    found: Metrics = {"rollout_time": rollout_time}
    if max(pauses) > 0:
        found |= dict_add_prefix(compute_statistics(pauses), "non_generation_time/")
    lengths = {
        "": [sample.response_length for sample in samples],
        "effective_": [sample.effective_response_length for sample in samples],
    }
    for kind, counts in lengths.items():
        if args.rollout_num_gpus:
            found[f"{kind}tokens_per_gpu_per_sec"] = sum(counts) / rollout_time / args.rollout_num_gpus
        longest = max(counts)
        found[f"longest_{kind}sample_tokens_per_sec"] = longest / rollout_time
        paused = [pause for pause, count in zip(pauses, counts, strict=True) if count == longest]
        generating = rollout_time - sum(paused) / len(paused)
        if max(pauses) > 0 and generating > 0:
            found[f"longest_{kind}sample_tokens_per_sec_without_non_generation"] = longest / generating
    return found


def _zero_std_counts(args: Any, samples: Sequence[Sample]) -> Metrics:
    """Prompts whose samples all have the same reward, by that reward to one decimal."""
    rewards = defaultdict(set)
    for sample in samples:
        if (reward := sample.get_reward_value(args)) is not None:
            rewards[sample.group_index].add(float(reward))
    same = Counter(f"{min(values):.1f}" for values in rewards.values() if len(values) == 1)
    return {f"zero_std/count_{reward}": float(count) for reward, count in same.items()}

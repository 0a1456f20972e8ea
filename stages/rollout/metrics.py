"""What a shard of samples says about itself, under slime's metric keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from slime_stages.sample import Sample, Status

DROPPED = "dropped/"


def rollout_counts(samples: Sequence[Sample], prompts: Mapping[str, int], *, carries: bool) -> dict[str, int]:
    """What became of every prompt, and samples by status."""
    by_status = Counter(Status(sample.status).value for sample in samples)
    names = prompts.keys() - (set() if carries else {"taken"})
    return {**{name: count for name, count in prompts.items() if name in names}, **by_status}


def drop_metrics(prompts: Mapping[str, int]) -> dict[str, float | None]:
    """Groups that were dropped, by reason."""
    reasons = {name.removeprefix(DROPPED): count for name, count in prompts.items() if name.startswith(DROPPED)}
    return {f"rollout/dynamic_filter/drop_{reason}": float(count) for reason, count in reasons.items()}


def rollout_metrics(samples: Sequence[Sample], seconds: float) -> dict[str, float | None]:
    """Response lengths count tokens that the model wrote; rates are for the time spent generating."""
    lengths = np.array([sample.effective_response_length for sample in samples], np.int64)
    if not len(lengths):
        return {}
    truncated = sum(sample.status == Status.TRUNCATED for sample in samples)
    return {
        "rollout/response_len/mean": float(lengths.mean()),
        "rollout/response_len/median": float(np.median(lengths)),
        "rollout/response_len/max": float(lengths.max()),
        "rollout/response_len/min": float(lengths.min()),
        "rollout/truncated_ratio": truncated / len(samples),
        "perf/rollout_time": seconds,
        "perf/effective_tokens_per_second": float(lengths.sum()) / seconds if seconds else None,
        **_prefix_cache_metrics(samples),
        **_speculation_metrics(samples),
    }


def _prefix_cache_metrics(samples: Sequence[Sample]) -> dict[str, float | None]:
    cached = sum(sample.prefix_cache_info.cached_tokens for sample in samples)
    asked = sum(sample.prefix_cache_info.total_prompt_tokens for sample in samples)
    return {
        "rollout/prefix_cache_hit_rate": cached / asked if asked else 0.0,
        "rollout/avg_cached_tokens_per_sample": cached / len(samples),
    }


def _speculation_metrics(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Nothing where no engine has verified a draft."""
    accepted = sum(sample.spec_info.spec_accept_token_num for sample in samples)
    proposed = sum(sample.spec_info.spec_draft_token_num for sample in samples)
    written = sum(sample.spec_info.completion_token_num for sample in samples)
    if not (verified := sum(sample.spec_info.spec_verify_ct for sample in samples)):
        return {}
    return {
        "rollout/spec_accept_rate": accepted / proposed if proposed else 0.0,
        "rollout/spec_accept_length": written / verified,
    }

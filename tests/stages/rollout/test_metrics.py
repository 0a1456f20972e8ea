from __future__ import annotations

from slime_stages.data.counters import PrefixCacheInfo, SpecInfo
from slime_stages.sample import Sample
from stages.rollout.metrics import rollout_metrics


def test_the_engines_counters_of_all_samples_come_together() -> None:
    samples = [
        Sample(response_length=6, spec_info=SpecInfo(4, 8, 2, 6), prefix_cache_info=PrefixCacheInfo(10, 20)),
        Sample(response_length=2, spec_info=SpecInfo(0, 0, 0, 0), prefix_cache_info=PrefixCacheInfo(0, 20)),
        Sample(response_length=5, spec_info=SpecInfo(2, 4, 3, 4), prefix_cache_info=PrefixCacheInfo(5, 20)),
    ]

    metrics = rollout_metrics(samples, 2.0)

    assert metrics["rollout/spec_accept_rate"] == 6 / 12
    assert metrics["rollout/spec_accept_length"] == 10 / 5
    assert metrics["rollout/prefix_cache_hit_rate"] == 15 / 60
    assert metrics["rollout/avg_cached_tokens_per_sample"] == 5.0


def test_without_drafts_nothing_is_said_of_them() -> None:
    metrics = rollout_metrics([Sample(response_length=6)], 2.0)

    assert not [name for name in metrics if "spec_" in name]

from __future__ import annotations

from slime_stages.launch.memory_sizes import memory_sizes
from slime_stages.lineage import committed
from slime_stages.slurm.advice import SIZES
from tests.slime_stages.cli.small_run import SmallRun
from tests.slime_stages.config.settings import resolved


def test_training_depends_on_the_longest_response_and_on_the_batch(small: SmallRun) -> None:
    plan = small.plan(0)
    for shard, longest in ((0, 70.0), (1, 120.0)):
        small.rollout(plan, shard)
        path = small.run.manifest_path("rollout", 0, shard, 2)
        manifest = committed(small.run, plan, "rollout", shard)
        path.write_bytes(manifest.model_copy(update={"metrics": {"rollout/response_len/max": longest}}).to_bytes())

    assert memory_sizes(small.run, plan, small.config, "train") == {"longest_response": 120, "micro_batch_size": 1}


def test_with_dynamic_batches_the_tokens_of_a_pass_count(small: SmallRun) -> None:
    config = resolved(use_dynamic_batch_size=True, max_tokens_per_gpu=4096).config

    assert memory_sizes(small.run, small.plan(0), config, "train") == {"max_tokens_per_gpu": 4096}


def test_other_stages_have_sizes_of_their_own_and_all_have_words(small: SmallRun) -> None:
    config = resolved(reward_workers=3, sglang_server_concurrency=64).config
    sizes = {
        stage: memory_sizes(small.run, small.plan(0), config, stage) for stage in ("rollout", "reward", "train", "sync")
    }

    assert sizes["rollout"] == {"samples_in_flight": 64}
    assert sizes["reward"] == {"reward_workers": 3}
    assert sizes["sync"] == {}
    assert {name for found in sizes.values() for name in found} <= set(SIZES)

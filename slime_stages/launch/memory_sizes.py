"""What the memory of a stage depends on: for whoever has to ask for more, or for less at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import committed
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir


def memory_sizes(run: RunDir, plan: Plan, config: Config, stage: str) -> dict[str, int]:
    """By the names that `slurm/advice.py` has words for; cheap, from the config and from manifests."""
    if stage == "rollout":
        return {"samples_in_flight": config.serving.sglang_server_concurrency}
    lengths = list(_longest_responses(run, plan))
    sizes = {"longest_response": max(lengths)} if lengths else {}
    if stage == "reward" and config.reward.reward_workers is not None:
        sizes["reward_workers"] = config.reward.reward_workers
    if stage == "train" and config.train.use_dynamic_batch_size and config.train.max_tokens_per_gpu is not None:
        sizes["max_tokens_per_gpu"] = config.train.max_tokens_per_gpu
    elif stage == "train":
        sizes["micro_batch_size"] = config.train.micro_batch_size
    return {} if stage == "sync" else sizes


def _longest_responses(run: RunDir, plan: Plan) -> Iterator[int]:
    for shard in range(plan.shard_count):
        with suppress(SlimeStagesError):
            longest = committed(run, plan, "rollout", shard).metrics.get("rollout/response_len/max")
            if longest is not None:
                yield round(longest)

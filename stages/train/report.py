"""What is told of a training iteration: metrics under slime's keys, the fate of every sample, the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed

from slime_stages.data.content import content_digest
from slime_stages.data.schema import TRAIN
from slime_stages.data.shards import ShardWriter
from slime_stages.run.plan import Plan
from slime_stages.stage import Stage, append_metrics, defer
from slime_stages.tracking import track
from slime_stages.weights.checkpoints import CRITIC_CONTENT
from slime_stages.weights.partial import discard_partial, partial_folder
from stages.train.algorithm.metrics import zero_std_counts
from stages.train.batch import IterationBatch
from stages.train.critic import critic_metrics
from stages.train.policy import SavedPolicy
from stages.train.steps import Steps

TRAILING = "trailing"


def commit_training(
    stage: Stage,
    data: IterationBatch,
    steps: Steps,
    saved: SavedPolicy,
    sampler_gap: float | None,
    *,
    figures: dict[str, float | None],
    accepted: Sequence[str],
) -> Path:
    """Write `samples.parquet` and commit it with the checkpoint, on the first rank; the others return when it has.

    `figures` of its performance go with the metrics, and not into the manifest.
    """
    checkpoint = saved.checkpoint
    pending = [checkpoint] if saved.critic is None else [checkpoint, saved.critic]
    if torch.distributed.get_rank() == 0:
        reasons = drop_reasons(data, steps)
        metrics = training_metrics(data, steps) | staleness_metrics(stage.plan, sampler_gap)
        append_metrics(stage, metrics | figures)  # before the commit: after it nobody would come back for them
        track(stage.run, stage.plan, stage.config, metrics | figures)
        with stage.output("samples.parquet") as temporary:
            with ShardWriter(temporary, TRAIN, {"run_id": stage.plan.run_id}) as writer:
                writer.write(sample_columns(stage, data, steps, reasons))
            stage.commit(
                data=temporary,
                name="samples.parquet",
                folders={each.target: each.prepare(whole=False) for each in pending},
                rows=data.sample_count,
                tokens=int(data.batch.total_lengths.sum()),
                content=saved.content,
                counts={"samples": data.sample_count, **Counter(reason or "used" for reason in reasons)},
                metrics=metrics,
                outputs={
                    "policy_version": saved.version,
                    "probes": saved.probes,
                    "samples_content": content_digest(temporary, TRAIN),
                    **({"accepted": list(accepted)} if accepted else {}),
                    **({CRITIC_CONTENT: saved.critic_content} if saved.critic is not None else {}),
                },
            )
        _settle(saved)
        discard_partial(partial_folder(stage.run, stage.plan.iteration))
    torch.distributed.barrier()
    return stage.manifest_path


def _settle(saved: SavedPolicy) -> None:
    """After the commit: complete what has its place, delete what another attempt has won over."""
    checkpoint, critic = saved.checkpoint, saved.critic
    if critic is not None and critic.is_in_place():
        critic.finish()
    if not checkpoint.is_in_place():
        checkpoint.abandon()
        if critic is not None:
            critic.abandon()
    elif checkpoint.is_whole:
        checkpoint.finish()
    else:
        defer(checkpoint.finish)


def probs_diff(steps: Steps) -> float | None:
    """Mean |p train - p rollout| of the first step; with staleness 0 the trainer still was the sampler's policy."""
    return steps.results[0].metrics.get("probs_diff") if steps.results else None


def drop_reasons(data: IterationBatch, steps: Steps) -> list[str | None]:
    """[S] why a sample was in no step, or was in one without being trained on."""
    removed = data.table["remove_sample"].to_pylist()
    reasons: list[str | None] = []
    for reason, step, is_removed in zip(data.drop_reasons, steps.step_of.tolist(), removed, strict=True):
        reasons.append(reason or (TRAILING if step < 0 else "removed" if is_removed else None))
    return reasons


def training_metrics(data: IterationBatch, steps: Steps) -> dict[str, float | None]:
    """Means over the iteration's steps, under slime's keys."""
    batch, results = steps.batch, steps.results
    names = sorted({name for result in results for name in result.metrics})
    metrics: dict[str, float | None] = {
        f"train/{name}": float(np.mean([result.metrics.get(name, 0.0) for result in results])) for name in names
    }
    scored = ~np.isnan(data.raw_rewards)
    if results:
        metrics |= {
            "train/grad_norm": float(np.mean([result.grad_norm for result in results])),
            "train/lr-pg_0": results[-1].lr,
        }
    metrics |= critic_metrics(steps.critic_results)
    metrics |= {
        "train/global_batch_size": float(steps.schedule.global_batch_sizes[0]),
        "train/steps": float(len(results)),
        "train/skipped_steps": float(sum(not result.updated for result in results)),
        "train/backward_share": float(steps.backward.mean()),
        "rollout/raw_reward": float(data.raw_rewards[scored].mean()) if scored.any() else None,
        "rollout/truncated": float(batch.truncated.mean()),
        "rollout/response_lengths": float(batch.response_lengths.mean()),
        "rollout/total_lengths": float(batch.total_lengths.mean()),
        "rollout/rewards": float(batch.rewards.mean()),
        **{f"rollout/{name}": value for name, value in steps.column_means.items()},
    }
    counts = zero_std_counts(data.raw_rewards[scored], batch.group_indices[scored])
    groups = len(np.unique(batch.group_indices))
    metrics |= {f"rollout/{name}": float(count) for name, count in counts.items()}
    metrics["rollout/zero_std_ratio"] = sum(counts.values()) / groups if groups else None
    return metrics


def staleness_metrics(plan: Plan, sampler_gap: float | None) -> dict[str, float | None]:
    """`staleness` in weight versions; `sampler_probs_diff` is `probs_diff` with the weights that generated."""
    metrics: dict[str, float | None] = {"train/staleness": float(plan.staleness)}
    return metrics | ({"train/sampler_probs_diff": sampler_gap} if plan.staleness > 0 else {})


def sample_columns(stage: Stage, data: IterationBatch, steps: Steps, reasons: list[str | None]) -> dict[str, Any]:
    """The columns of `TRAIN`."""
    batch, table, count = steps.batch, data.table, data.sample_count
    trained = np.maximum(batch.loss_mask_sums, 1)
    seen = (steps.step_of >= 0) & (batch.loss_mask_sums > 0)
    means = {name: np.where(seen, sums / trained, np.nan) for name, sums in steps.statistics.sums.items()}
    if batch.rollout_log_probs is None:
        means["log_prob_gap"] = np.full(count, np.nan)
    if stage.config.algorithm.loss_type != "policy_loss" or not steps.results:
        means = dict.fromkeys(means, np.full(count, np.nan))
    used = [reason is None for reason in reasons]
    return {
        "iteration": np.full(count, stage.plan.iteration, np.int32),
        "shard": table["shard"],
        "row": table["row"],
        "index": table["index"],
        "group_index": table["group_index"],
        "rollout_id": batch.rollout_ids,
        "used": used,
        "drop_reason": reasons,
        "step": [step if step >= 0 else None for step in steps.step_of.tolist()],
        "raw_reward": _optional(data.raw_rewards),
        "advantage": [float(value) if ok else None for value, ok in zip(batch.rewards, used, strict=True)],
        **{name: _optional(values) for name, values in means.items()},
        "trained_tokens": batch.loss_mask_sums.astype(np.int32),
        "backward": steps.backward,
    }


def _optional(values: Any) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]

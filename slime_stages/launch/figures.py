"""The figures of an iteration that people look at first, from its manifests."""

from __future__ import annotations

from typing import Any

from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import shard_manifest_path
from slime_stages.manifest import Manifest, read_manifest
from slime_stages.plan import Plan
from slime_stages.rundir import RunDir
from slime_stages.stage import read_run_plan


def manifests_of(run: RunDir, plan: Plan, stage: str) -> list[Manifest]:
    """The manifests of a stage that can be read, in the order of shards."""
    shards = [None] if stage in ("train", "sync") else list(range(plan.shard_count))
    found = []
    for shard in shards:
        try:
            found.append(read_manifest(shard_manifest_path(run, plan, stage, shard)))
        except SlimeStagesError:
            continue
    return found


def iteration_rows(run: RunDir, iterations: range) -> list[dict[str, str]]:
    """One row of texts an iteration, for a table."""
    rows = []
    for iteration in iterations:
        if not run.plan_path(iteration).exists():
            continue
        plan = read_run_plan(run, iteration)
        made = {stage: manifests_of(run, plan, stage) for stage in ("rollout", "reward", "train", "sync")}
        train = made["train"][0].metrics if made["train"] else {}
        rows.append(
            {
                "iteration": str(iteration),
                "samples": str(sum(m.rows for m in made["rollout"])),
                "tokens": str(sum(m.tokens for m in made["rollout"])),
                "reward": number(weighted(made["reward"], "rollout/raw_reward"), 3),
                "truncated": number(weighted(made["rollout"], "rollout/truncated_ratio"), 2),
                "|Δp|": number(train.get("train/probs_diff"), 6),
                "entropy": number(train.get("train/entropy_loss"), 3),
                "grad norm": number(train.get("train/grad_norm"), 3),
                **{f"{stage} s": seconds(made[stage]) for stage in made},
            }
        )
    return rows


def evaluation_rows(run: RunDir) -> list[str]:
    """One line for each evaluation there is: set, version, mean reward."""
    lines = []
    for version in run.iterations():
        folder = run.iteration_path(version) / "eval"
        for split in sorted(path.name for path in folder.iterdir()) if folder.exists() else ():
            if run.plan_path(version, split).exists():
                rewards = manifests_of(run, read_run_plan(run, version, split), "reward")
                value = number(weighted(rewards, "rollout/raw_reward"), 3)
                lines.append(f"eval/{split}: weights {version}: {value} over {sum(m.rows for m in rewards)} samples")
    return lines


def weighted(manifests: list[Manifest], name: str) -> float | None:
    """Mean of a metric over shards, by rows; None if none has it."""
    pairs = [(m.metrics[name], m.rows) for m in manifests if m.metrics.get(name) is not None]
    total = sum(rows for _, rows in pairs)
    return sum(value * rows for value, rows in pairs if value is not None) / total if total else None


def seconds(manifests: list[Manifest]) -> str:
    """Wall clock of the stage, of all its shards together."""
    from datetime import datetime

    spans = [datetime.fromisoformat(m.finished) - datetime.fromisoformat(m.started) for m in manifests]
    return f"{sum(span.total_seconds() for span in spans):.1f}" if spans else "-"


def number(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

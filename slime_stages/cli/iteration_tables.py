"""Iterations as rows of texts, and one iteration shard by shard."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slime_stages.cli.tables import print_table
from slime_stages.cli.trouble import print_trouble

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.iteration_detail import IterationDetail, ShardDetail
    from slime_stages.launch.overview import IterationOverview, StageOverview, TaskFact

STAGES = ("rollout", "reward", "train", "sync")
ITERATION_DROPPABLE = (
    "sync s",
    "reward s",
    "tokens",
    "train s",
    "rollout s",
    "run s",
    "truncated",
    "samples",
    "|Δp|",
    "queue s",
)
SUMMARY_DROPPABLE = ("tokens", "samples", "truncated", "|Δp|")
EVALUATION_DROPPABLE = ("reward s", "tokens", "rollout s", "samples")
SHARD_DROPPABLE = ("reward s", "rollout s", "tokens", "prompts")
METRICS = {
    "train/steps": "steps",
    "train/grad_norm": "grad norm",
    "train/entropy_loss": "entropy",
    "train/probs_diff": "|Δp|",
    "train/ppo_kl": "ppo kl",
    "train/pg_clipfrac": "clipped",
}
"""Metrics of training worth a look → their name for people."""


def iteration_row(part: IterationOverview) -> dict[str, str]:
    return {
        "iteration": str(part.iteration),
        **stage_cells(part, STAGES),
        "samples": f"{part.samples:,}",
        "tokens": f"{part.tokens:,}",
        "mean reward": number(part.reward, 3),
        "truncated": percent(part.truncated),
        "|Δp|": number(part.probs_diff, 6),
        **second_cells(part, STAGES),
    }


def iteration_rows(parts: Sequence[IterationOverview]) -> list[dict[str, str]]:
    """With how long jobs waited and worked, if there were any."""
    rows = [iteration_row(part) for part in parts]
    if all(part.queue_seconds is None for part in parts):
        return rows
    times = ({"queue s": number(p.queue_seconds, 1), "run s": number(p.run_seconds, 1)} for p in parts)
    return [{**row, **more} for row, more in zip(rows, times, strict=True)]


def summary_row(part: IterationOverview) -> dict[str, str]:
    """The same of an iteration that is complete."""
    row = iteration_row(part)
    return {name: cell for name, cell in row.items() if name not in STAGES}


def evaluation_row(part: IterationOverview) -> dict[str, str]:
    stages = STAGES[:2]
    return {
        "evaluation": part.split,
        "weights": str(part.iteration),
        **stage_cells(part, stages),
        "samples": f"{part.samples:,}",
        "tokens": f"{part.tokens:,}",
        "mean reward": number(part.reward, 3),
        "truncated": percent(part.truncated),
        **second_cells(part, stages),
    }


def stage_cells(part: IterationOverview, stages: tuple[str, ...]) -> dict[str, str]:
    return {name: stage_cell(part.stages[name]) if part.stages else "no plan" for name in stages}


def second_cells(part: IterationOverview, stages: tuple[str, ...]) -> dict[str, str]:
    return {f"{name} s": number(part.stages[name].seconds if part.stages else None, 1) for name in stages}


def stage_cell(stage: StageOverview) -> str:
    """`committed`, `stale`, `3/4, 1 missing`, `1/4, 1 failed, 2 running`."""
    if stage.shards == 1 or set(stage.activity) in ({"missing"}, {"queued"}, {"submitted"}):
        return next(iter(stage.activity))
    others = {word: count for word, count in stage.activity.items() if word != "committed"}
    have = f"{stage.counts['committed']}/{stage.shards}"
    return f"{have}, {texts(others)}" if others else f"{have} committed"


def print_detail(console: Console, detail: IterationDetail) -> None:
    """The shards, the accounts of prompts and samples, training, evaluations, and what is wrong."""
    overview = detail.overview
    console.print(
        f"iteration {overview.iteration}: {versions_line(detail)}, config revision {detail.config_revision}\n",
        soft_wrap=True,
    )
    print_table(console, shard_rows(detail.shards), droppable=SHARD_DROPPABLE)
    lines = [prompts_line(detail), *training_lines(detail)]
    console.print("\n" + "\n".join(lines), soft_wrap=True)
    if detail.evaluations:
        console.print()
        print_table(console, [evaluation_row(part) for part in detail.evaluations], droppable=EVALUATION_DROPPABLE)
    print_trouble(console, [overview, *detail.evaluations], limit=None)


def versions_line(detail: IterationDetail) -> str:
    if detail.policy_version == detail.start_version:
        return f"generated and trained from weights {detail.policy_version}"
    return f"generated with weights {detail.policy_version}, trained from {detail.start_version}"


def shard_rows(shards: Sequence[ShardDetail]) -> list[dict[str, str]]:
    """With what jobs do about shards that are not there, if any does."""
    rows = [shard_row(shard) for shard in shards]
    tasks = [shard.rollout_task or shard.reward_task for shard in shards]
    if not any(tasks):
        return rows
    return [{**row, "job": task_text(task) if task else "-"} for row, task in zip(rows, tasks, strict=True)]


def task_text(task: TaskFact) -> str:
    """`123_4 runs on node3, 75 s`."""
    since = f", {max(0.0, time.time() - task.since):,.0f} s" if task.since and task.activity != "failed" else ""
    return " ".join(filter(None, (task.job, task.reason))) + since


def shard_row(shard: ShardDetail) -> dict[str, str]:
    return {
        "shard": str(shard.shard),
        "prompts": f"{shard.prompts:,}",
        "rollout": word(shard.rollout, shard.rollout_task),
        "samples": f"{shard.samples:,}",
        "by status": texts(shard.statuses) or "-",
        "tokens": f"{shard.tokens:,}",
        "reward": word(shard.reward, shard.reward_task),
        "by reward status": texts(shard.reward_statuses) or "-",
        "mean reward": number(shard.mean_reward, 3),
        "rollout s": number(shard.rollout_seconds, 1),
        "reward s": number(shard.reward_seconds, 1),
    }


def word(state: str, task: TaskFact | None) -> str:
    return task.activity if task else state


def prompts_line(detail: IterationDetail) -> str:
    """`prompts: issued 8 = kept 6 + dropped 1 + carried 1`; those of missing shards are not issued yet.

    With handed-over ones: `issued 8 + taken 2 = …`, and dropped ones by reason.
    """
    prompts = detail.prompts
    planned = sum(shard.prompts for shard in detail.shards)
    sign = "=" if detail.adds_up else "≠"
    taken = f" + taken {prompts['taken']}" if prompts["taken"] else ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in detail.drop_reasons.items())
    line = (
        f"prompts: issued {prompts['issued']}{taken} {sign} kept {prompts['kept']} "
        f"+ dropped {prompts['dropped']}{f' ({reasons})' if reasons else ''} + carried {prompts['carried']}"
    )
    missing = sum(shard.prompts for shard in detail.shards if not shard.samples)
    return f"{line}; {missing} of {planned} not issued yet" if missing else line


def training_lines(detail: IterationDetail) -> list[str]:
    stages = detail.overview.stages
    train, sync = stages["train"], stages["sync"]
    metrics = [
        f"{name} {detail.train_metrics[key]:.6g}"
        for key, name in METRICS.items()
        if detail.train_metrics.get(key) is not None
    ]
    lines = [f"train: {stage_cell(train)}" + after(train.seconds) + "".join(f", {metric}" for metric in metrics)]
    if detail.trained is not None:
        total = sum(detail.trained.values())
        account = " + ".join(f"{count} {reason}" for reason, count in detail.trained.items())
        lines.append(f"samples: {total} = {account}")
    return [*lines, f"sync: {stage_cell(sync)}" + after(sync.seconds)]


def after(seconds: float | None) -> str:
    return "" if seconds is None else f" in {seconds:.1f} s"


def texts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"

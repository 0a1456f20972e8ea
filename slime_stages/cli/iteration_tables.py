"""Iterations as rows of texts, and one iteration shard by shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slime_stages.cli.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.iteration_detail import IterationDetail, ShardDetail
    from slime_stages.launch.overview import IterationOverview, StageOverview

STAGES = ("rollout", "reward", "train", "sync")
ITERATION_DROPPABLE = ("sync s", "reward s", "tokens", "train s", "rollout s", "truncated", "samples", "|Δp|")
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
    """`committed`, `stale`, `3/4, 1 missing`."""
    if stage.shards == 1 or stage.counts["missing"] == stage.shards:
        return stage.state
    others = {word: count for word, count in stage.counts.items() if count and word != "committed"}
    have = f"{stage.counts['committed']}/{stage.shards}"
    return f"{have}, {texts(others)}" if others else f"{have} committed"


def print_detail(console: Console, detail: IterationDetail) -> None:
    """The shards, the accounts of prompts and samples, training, evaluations, and what is wrong."""
    overview = detail.overview
    console.print(
        f"iteration {overview.iteration}: generated and trained from weights {detail.policy_version}, "
        f"config revision {detail.config_revision}\n",
        soft_wrap=True,
    )
    print_table(console, [shard_row(shard) for shard in detail.shards], droppable=SHARD_DROPPABLE)
    lines = [prompts_line(detail), *training_lines(detail)]
    console.print("\n" + "\n".join(lines), soft_wrap=True)
    if detail.evaluations:
        console.print()
        print_table(console, [evaluation_row(part) for part in detail.evaluations], droppable=EVALUATION_DROPPABLE)
    problems = [*overview.problems, *(problem for part in detail.evaluations for problem in part.problems)]
    for position, problem in enumerate(problems):
        start = "" if position else "\n"
        console.print(f"{start}{problem.title} is {problem.state}: {problem.reason}", style="yellow", soft_wrap=True)


def shard_row(shard: ShardDetail) -> dict[str, str]:
    return {
        "shard": str(shard.shard),
        "prompts": f"{shard.prompts:,}",
        "rollout": shard.rollout,
        "samples": f"{shard.samples:,}",
        "by status": texts(shard.statuses) or "-",
        "tokens": f"{shard.tokens:,}",
        "reward": shard.reward,
        "by reward status": texts(shard.reward_statuses) or "-",
        "mean reward": number(shard.mean_reward, 3),
        "rollout s": number(shard.rollout_seconds, 1),
        "reward s": number(shard.reward_seconds, 1),
    }


def prompts_line(detail: IterationDetail) -> str:
    """`prompts: issued 8 = kept 6 + dropped 1 + carried 1`; those of missing shards are not issued yet."""
    prompts = detail.prompts
    planned = sum(shard.prompts for shard in detail.shards)
    sign = "=" if detail.adds_up else "≠"
    line = (
        f"prompts: issued {prompts['issued']} {sign} "
        f"kept {prompts['kept']} + dropped {prompts['dropped']} + carried {prompts['carried']}"
    )
    return (
        line if prompts["issued"] == planned else f"{line}; {planned - prompts['issued']} of {planned} not issued yet"
    )


def training_lines(detail: IterationDetail) -> list[str]:
    stages = detail.overview.stages
    train, sync = stages["train"], stages["sync"]
    metrics = [
        f"{name} {detail.train_metrics[key]:.6g}"
        for key, name in METRICS.items()
        if detail.train_metrics.get(key) is not None
    ]
    lines = [f"train: {train.state}" + after(train.seconds) + "".join(f", {metric}" for metric in metrics)]
    if detail.trained is not None:
        total = sum(detail.trained.values())
        account = " + ".join(f"{count} {reason}" for reason, count in detail.trained.items())
        lines.append(f"samples: {total} = {account}")
    return [*lines, f"sync: {sync.state}" + after(sync.seconds)]


def after(seconds: float | None) -> str:
    return "" if seconds is None else f" in {seconds:.1f} s"


def texts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"

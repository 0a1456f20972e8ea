"""What is wrong with a run, in lines: outputs that cannot be used as they are, and jobs that failed or cannot start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.overview import IterationOverview, TaskFact


def print_trouble(console: Console, parts: Sequence[IterationOverview], *, limit: int | None) -> None:
    """An empty line and the lines, if there are any; the first `limit` ones."""
    lines = [
        *((line, "bold red") for line in failure_lines([task for part in parts for task in part.tasks])),
        *(
            (f"{problem.title} is {problem.state}: {problem.reason}", "yellow")
            for part in parts
            for problem in part.problems
        ),
    ]
    if lines:
        console.print()
    for line, style in lines[:limit]:
        console.print(line, style=style, soft_wrap=True)
    say_left_out(console, len(lines) - len(lines[:limit]), "more")


def failure_lines(tasks: Sequence[TaskFact]) -> list[str]:
    """One for all shards that have the same trouble, with the job of the last of them."""
    alike: dict[tuple[str, int, str, str, str, str | None], list[TaskFact]] = {}
    for task in tasks:
        if task.activity == "failed" or task.advice is not None:
            key = (task.stage, task.iteration, task.split, task.activity, task.reason, task.advice)
            alike.setdefault(key, []).append(task)
    return [_line(group) for group in alike.values()]


def _line(group: Sequence[TaskFact]) -> str:
    from slime_stages.slurm.jobs import shard_ranges

    last = group[-1]
    shards = shard_ranges(task.shard for task in group)
    title = f"{last.stage} {last.iteration}" + (f"/{shards}" if shards else "")
    title += "" if last.split == "train" else f" {last.split}"
    job = f" (job {last.job})" if last.job else ""
    advice = f"\n  hint: {last.advice}" if last.advice else ""
    return f"{title} {'failed' if last.activity == 'failed' else 'is ' + last.activity}: {last.reason}{job}{advice}"


def say_left_out(console: Console, count: int, what: str) -> None:
    if count:
        console.print(f"({count} {what}; --all shows them)", style="dim", soft_wrap=True)

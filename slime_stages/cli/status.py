"""`slime-stages status`: where a run stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.options import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.overview import RunOverview

SHOWN = 20
"""Newest iterations, evaluations and problems shown without `--all`."""

Iteration = Annotated[int | None, typer.Option("--iter", metavar="I", min=0, help="One iteration, shard by shard.")]
Everything = Annotated[bool, typer.Option("--all", help=f"Show all iterations, not the last {SHOWN}.")]
Json = Annotated[bool, typer.Option("--json", help="The same as JSON, all iterations.")]


def command(
    run: RunFolder = None, iteration: Iteration = None, everything: Everything = False, json: Json = False
) -> None:
    """Show what is committed, stale, missing or corrupt, how it went, and what to type next."""
    from slime_stages.launch.iteration_detail import iteration_detail
    from slime_stages.launch.overview import run_overview
    from slime_stages.rundir import find_run

    run_dir = find_run(run)
    detail = None if iteration is None else iteration_detail(run_dir, iteration)
    overview = run_overview(run_dir)
    if json:
        print_json(overview if detail is None else {"detail": detail, "next_command": overview.next_command})
        return
    from slime_stages.cli.iteration_tables import print_detail
    from slime_stages.cli.tables import make_console

    console = make_console()
    if detail is None:
        print_overview(console, overview, limit=None if everything else SHOWN)
    else:
        print_detail(console, detail)
    console.print(f"\nnext: {overview.next_command}", style="bold", soft_wrap=True)


def print_json(value: object) -> None:
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_overview(console: Console, overview: RunOverview, *, limit: int | None) -> None:
    """Iterations, evaluations and problems; of each the last `limit`, or the first ones of problems."""
    from slime_stages.cli.iteration_tables import (
        EVALUATION_DROPPABLE,
        ITERATION_DROPPABLE,
        evaluation_row,
        iteration_row,
    )
    from slime_stages.cli.tables import print_table

    iterations, evaluations = list(overview.iterations), list(overview.evaluations)
    console.print(f"{overview.run}: {counted(iterations, 'iteration')}", soft_wrap=True)
    if iterations:
        console.print()
        shown = iterations[-limit:] if limit else iterations
        print_table(console, [iteration_row(part) for part in shown], droppable=ITERATION_DROPPABLE)
        say_left_out(console, len(iterations) - len(shown), "earlier iterations")
    if evaluations:
        console.print()
        shown = evaluations[-limit:] if limit else evaluations
        print_table(console, [evaluation_row(part) for part in shown], droppable=EVALUATION_DROPPABLE)
        say_left_out(console, len(evaluations) - len(shown), "earlier evaluations")
    if overview.problems:
        console.print()
        problems = overview.problems[:limit]
        for problem in problems:
            console.print(f"{problem.title} is {problem.state}: {problem.reason}", style="yellow", soft_wrap=True)
        say_left_out(console, len(overview.problems) - len(problems), "more")


def counted(items: Sequence[object], noun: str) -> str:
    return f"{len(items) or 'no'} {noun}" + ("" if len(items) == 1 else "s")


def say_left_out(console: Console, count: int, what: str) -> None:
    if count:
        console.print(f"({count} {what}; --all shows them)", style="dim", soft_wrap=True)

"""`slime-stages status`: where a run stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from slime_stages.cli.options import RunFolder
from slime_stages.errors import DataError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.overview import IterationOverview
    from slime_stages.launch.run_overview import RunOverview
    from slime_stages.run.rundir import RunDir

SHOWN = 20
"""Newest iterations, evaluations and problems shown without `--all`."""
WATCH_SECONDS = 15
IDLE_LOOKS = 4
LEFT_OUT_NAMED = 10

Iteration = Annotated[int | None, typer.Option("--iter", metavar="I", min=0, help="One iteration, shard by shard.")]
Everything = Annotated[
    bool, typer.Option("--all", help=f"Show all iterations, not the last {SHOWN}, and look at all their files.")
]
Json = Annotated[bool, typer.Option("--json", help="The same as JSON, all iterations.")]
Watch = Annotated[
    float | None,
    typer.Option("--watch", metavar="[SECONDS]", min=1, help=f"Show it again and again. [default: {WATCH_SECONDS} s]"),
]


class StatusCommand(TyperCommand):
    """Takes `--watch` without seconds, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_watch_seconds(args))


def with_watch_seconds(words: Sequence[str]) -> list[str]:
    """The same words, with a number behind `--watch`."""
    given = list(words)
    if "--watch" in given:
        behind = given.index("--watch") + 1
        if not given[behind : behind + 1] or not given[behind].replace(".", "", 1).isdigit():
            given.insert(behind, str(WATCH_SECONDS))
    return given


def command(
    run: RunFolder = None,
    iteration: Iteration = None,
    everything: Everything = False,
    watch: Watch = None,
    json: Json = False,
) -> None:
    """Show what is committed, stale, missing or corrupt, what jobs are at it, how it went, and what to type next."""
    from slime_stages.launch.run_overview import run_overview
    from slime_stages.run.rundir import find_run

    run_dir = find_run(run)
    if watch is not None:
        if json or iteration is not None:
            raise UsageError(
                "--watch shows the whole run, as text", hint=f"slime-stages status --run {run_dir.root} --watch"
            )
        from slime_stages.cli.watch import watch_run

        watch_run(run_dir, watch, limit=None if everything else SHOWN)
        return
    overview = run_overview(run_dir, newest=None if everything or json or iteration is not None else SHOWN)
    if iteration is not None:
        from slime_stages.launch.iteration_detail import iteration_detail

        detail = iteration_detail(run_dir, iteration, overview)
    if json:
        print_json(overview if iteration is None else {"detail": detail, "next_command": overview.next_command})
        return
    from slime_stages.cli.iteration_tables import print_detail
    from slime_stages.cli.tables import make_console

    console = make_console()
    if iteration is None:
        print_overview(console, overview, limit=None if everything else SHOWN)
    else:
        print_detail(console, detail)
    print_next(console, overview)


def watch(run: RunDir) -> None:
    """Show the run until its chain of jobs is done. DataError if it has stopped, or no job is left to go on with it."""
    from slime_stages.cli.watch import watch_run

    overview = watch_run(run, WATCH_SECONDS, limit=SHOWN, until=End())
    if overview is None or overview.chain is None:
        return
    if overview.chain.stopped is not None:
        raise DataError(f"the chain of jobs has stopped: {overview.chain.stopped}", hint=overview.chain.advice)
    if not is_reached(overview):
        raise DataError(
            f"no job of {run.root} is left, and its chain is not at iteration {overview.chain.target - 1} yet",
            hint=overview.next_command,
        )


class End:
    """Whether there is nothing more to wait for; a queue that is empty between two jobs is none yet."""

    def __init__(self) -> None:
        self._idle = 0

    def __call__(self, overview: RunOverview) -> bool:
        chain, jobs = overview.chain, overview.jobs
        is_idle = not jobs.count and jobs.silence is None
        self._idle = self._idle + 1 if is_idle else 0
        is_ended = chain is None or chain.stopped is not None or is_reached(overview)
        return is_idle and (is_ended or self._idle >= IDLE_LOOKS)


def is_reached(overview: RunOverview) -> bool:
    """Whether the chain's last iteration is there, and all before it."""
    return overview.chain is not None and sum(p.is_complete for p in overview.iterations) >= overview.chain.target


def print_json(value: object) -> None:
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_next(console: Console, overview: RunOverview) -> None:
    console.print(f"\nnext: {overview.next_command}", style="bold", soft_wrap=True)


def print_overview(console: Console, overview: RunOverview, *, limit: int | None) -> None:
    """The chain, iterations, evaluations and trouble; of each the last `limit`, or the first ones of trouble."""
    from slime_stages.cli.iteration_tables import (
        EVALUATION_DROPPABLE,
        ITERATION_DROPPABLE,
        evaluation_row,
        iteration_rows,
    )
    from slime_stages.cli.tables import print_table
    from slime_stages.cli.trouble import print_trouble

    iterations, evaluations = list(overview.iterations), list(overview.evaluations)
    console.print(f"{overview.run}: {counted(iterations, 'iteration')}", soft_wrap=True)
    for line, style in chain_lines(overview):
        console.print(line, style=style, soft_wrap=True)
    if iterations:
        console.print()
        shown = iterations[-limit:] if limit else iterations
        print_table(console, iteration_rows(shown), droppable=ITERATION_DROPPABLE)
        print_left_out(console, iterations[: len(iterations) - len(shown)], "earlier iterations")
    if evaluations:
        console.print()
        shown = evaluations[-limit:] if limit else evaluations
        print_table(console, [evaluation_row(part) for part in shown], droppable=EVALUATION_DROPPABLE)
        print_left_out(console, evaluations[: len(evaluations) - len(shown)], "earlier evaluations")
    print_trouble(console, [*iterations, *evaluations], limit=limit)


def chain_lines(overview: RunOverview) -> list[tuple[str, str]]:
    """What the chain of jobs is at, with a style; nothing for a run without jobs."""
    chain, jobs = overview.chain, overview.jobs
    lines = []
    if chain is not None and chain.stopped is not None:
        lines.append((f"the chain of jobs has stopped: {chain.stopped}", "bold red"))
        lines += [(f"  hint: {chain.advice}", "bold red")] if chain.advice else []
    elif chain is not None:
        lines.append((f"the chain of jobs goes up to iteration {chain.target - 1}", ""))
    if jobs.silence is not None:
        lines.append((f"what runs and waits is not known: {jobs.silence}", "yellow"))
    elif chain is not None or jobs.count:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in jobs.queued.items())
        queued = f"{sum(jobs.queued.values()):,} queued" + (f" ({reasons})" if reasons else "")
        lines.append((f"jobs: {jobs.running:,} running, {queued}", ""))
    return lines


def counted(items: Sequence[object], noun: str) -> str:
    return f"{len(items) or 'no'} {noun}" + ("" if len(items) == 1 else "s")


def print_left_out(console: Console, parts: Sequence[IterationOverview], what: str) -> None:
    """One line for what is folded, and one for what is amiss among it."""
    from slime_stages.cli.trouble import say_left_out

    open_parts = [part for part in parts if not part.is_complete]
    say_left_out(console, len(parts), what + (", all committed" if parts and not open_parts else ""))
    if open_parts and len(open_parts) < len(parts):
        named = ", ".join(str(part.iteration) for part in open_parts[:LEFT_OUT_NAMED])
        more = f" and {len(open_parts) - LEFT_OUT_NAMED} more" if len(open_parts) > LEFT_OUT_NAMED else ""
        console.print(f"not complete among them: {named}{more}", style="yellow", soft_wrap=True)


command.command_class = StatusCommand  # type: ignore[attr-defined]

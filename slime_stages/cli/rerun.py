"""`slime-stages rerun`: make an output again on purpose."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.options import RunFolder

if TYPE_CHECKING:
    from slime_stages.launch.iterate import Event

Stage = Annotated[str, typer.Argument(metavar="STAGE", help="rollout, reward, train or sync.")]
Iteration = Annotated[int, typer.Option("--iter", metavar="I", min=0, help="Iteration.", show_default=False)]
Shard = Annotated[int | None, typer.Option("--shard", metavar="K", min=0, help="Shard. [default: all of them]")]
EvalName = Annotated[str | None, typer.Option("--eval", metavar="NAME", help="An evaluation set instead of training.")]
Downstream = Annotated[
    bool, typer.Option("--downstream", help="Then also what became stale by it, in this and later iterations.")
]
Submit = Annotated[
    bool,
    typer.Option("--submit", help="By the run's chain of jobs, which leaves nothing stale behind: --downstream too."),
]


def command(
    stage: Stage,
    iteration: Iteration,
    run: RunFolder = None,
    shard: Shard = None,
    split: EvalName = None,
    downstream: Downstream = False,
    submit: Submit = False,
) -> None:
    """Make an output again even if it is fresh; the old one moves to `superseded/` beside it.

    Prints the manifest of everything that is made here, or the id of every job that is submitted.
    """
    from slime_stages.launch.rerun import calls_to_rerun, rerun_as_jobs, rerun_here
    from slime_stages.launch.start_run import mend_run
    from slime_stages.run.rundir import find_run

    run_dir = find_run(run)
    calls = calls_to_rerun(run_dir, stage, iteration, shard, split or "train")
    if submit:
        from slime_stages.cli.chain import print_submitted

        print_submitted(run_dir, rerun_as_jobs(run_dir, calls))
        return
    mend_run(run_dir)
    rerun_here(run_dir, calls, downstream=downstream, on_event=print_event)


def print_event(event: Event) -> None:
    if event.kind == "done" and event.call is not None:
        print(f"{event.call.title}: {event.seconds:.1f} s", file=sys.stderr)
        typer.echo(event.manifest)

"""`slime-stages eval`: measure a version of the weights."""

from __future__ import annotations

from typing import Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.errors import UsageError

Version = Annotated[
    int | None, typer.Option("--iter", metavar="V", min=0, help="Version of the weights. [default: the newest]")
]


def command(run: RunFolder = None, version: Version = None) -> None:
    """Generate and score answers to the evaluation prompts with one version of the weights.

    Prints the manifest of every shard; the mean reward is in it, and in `slime-stages status`.
    """
    from slime_stages.launch.plans import ensure_eval_plan
    from slime_stages.launch.run_stage import run_stage
    from slime_stages.launch.start_run import current_revision, mend_run
    from slime_stages.launch.states import calls_of, first_incomplete
    from slime_stages.rundir import find_run
    from slime_stages.stage import read_config

    run_dir = find_run(run)
    mend_run(run_dir)
    datasets = read_config(run_dir, current_revision(run_dir)).eval.datasets
    if not datasets:
        raise UsageError(
            f"the run {run_dir.root} has no evaluation set", hint="a run with --eval-prompt-data NAME FILE has one"
        )
    number = first_incomplete(run_dir) if version is None else version
    for split, _ in datasets:
        for call in calls_of(run_dir, ensure_eval_plan(run_dir, number, split)):
            typer.echo(run_stage(call))

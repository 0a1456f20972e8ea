"""`slime-stages serve`: keep engines for a run's rollouts, here or in a job."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from slime_stages.cli.chain import DEFAULT_SBATCH, SbatchFolder
from slime_stages.cli.options import RunFolder
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options
from slime_stages.errors import UsageError

Submit = Annotated[bool, typer.Option("--submit", help="As a job, by sbatch/serve.sbatch; print its id and return.")]
Executor = Annotated[
    Literal["local", "slurm"], typer.Option("--executor", help="slurm is the same as --submit.", metavar="NAME")
]


@takes_slurm_options
def command(
    ctx: typer.Context,
    run: RunFolder = None,
    submit: Submit = False,
    executor: Executor = "local",
    sbatch: SbatchFolder = DEFAULT_SBATCH,
) -> None:
    """Keep engines with the run's newest weights, and a router before several, until told to end.

    For runs with `serving_mode = service`: rollouts send their requests here, and sync loads what it publishes.
    """
    from slime_stages.run.rundir import find_run

    run_dir, overrides = find_run(run), slurm_options(ctx)
    if submit or executor == "slurm":
        from slime_stages.launch.serve import submit_service

        typer.echo(submit_service(run_dir, sbatch=sbatch, overrides=overrides).job_id)
        return
    if overrides:
        raise UsageError("--slurm-* are for jobs", hint="add --submit, or leave them out")
    from slime_stages.drain import install_drain
    from slime_stages.launch.serve import serve

    install_drain()
    serve(run_dir)

"""The four stage programs as commands: `slime-stages rollout --shard 3`, alone or in a pipeline.

stdout carries the path of every manifest committed, one a line; `-` reads such paths, so that stages can be piped:

    slime-stages rollout | slime-stages reward - | slime-stages train - | slime-stages sync -
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.chain import DEFAULT_SBATCH, SbatchFolder
from slime_stages.cli.options import RunFolder
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options
from slime_stages.errors import DataError, MissingInputError, UsageError

if TYPE_CHECKING:
    from slime_stages.plan import Plan
    from slime_stages.rundir import RunDir
    from slime_stages.stage import StageCall

Iteration = Annotated[
    int | None, typer.Option("--iter", metavar="I", min=0, help="Iteration. [default: the first incomplete one]")
]
Shard = Annotated[int | None, typer.Option("--shard", metavar="K", min=0, help="Shard. [default: all of them]")]
EvalName = Annotated[str | None, typer.Option("--eval", metavar="NAME", help="An evaluation set instead of training.")]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is committed and fresh.")]
Submit = Annotated[bool, typer.Option("--submit", help="As a job, by sbatch/STAGE.sbatch; print its id and return.")]
Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="[- | MANIFEST...]", help="Manifests of the stage before; - reads them from stdin."),
]


def stage_command(stage: str, description: str, *, without: Collection[str]) -> Callable[..., None]:
    """The stage's command: all the options below, but for those that mean nothing to it."""

    def command(
        ctx: typer.Context,
        manifests: Paths = None,
        run: RunFolder = None,
        iteration: Iteration = None,
        shard: Shard = None,
        split: EvalName = None,
        force: Force = False,
        submit: Submit = False,
        sbatch: SbatchFolder = DEFAULT_SBATCH,
    ) -> None:
        wanted = calls(stage, run, iteration, shard, split=split, force=force, manifests=manifests)
        carry_out(wanted, ctx, submit=submit, sbatch=sbatch)

    full = inspect.signature(command, eval_str=True)
    kept = [parameter for name, parameter in full.parameters.items() if name not in without]
    command.__name__, command.__doc__ = stage, description
    command.__signature__ = full.replace(parameters=kept)  # type: ignore[attr-defined]
    return takes_slurm_options(command)


rollout = stage_command(
    "rollout",
    """Generate samples for an iteration's prompts, and print the manifest of each shard.

    Starts an engine with the iteration's weights and stops it afterwards, unless one is warm.
    """,
    without=("manifests",),
)
reward = stage_command("reward", "Score the samples of rollout shards, and print the manifest of each.", without=())
train = stage_command(
    "train",
    "Take the optimizer steps of an iteration, save a checkpoint, and print the manifest.",
    without=("shard", "split"),
)
sync = stage_command(
    "sync",
    "Publish the trained weights as the next version, checked, and print the manifest.",
    without=("shard", "split"),
)


def carry_out(wanted: Iterable[StageCall], ctx: typer.Context, *, submit: bool, sbatch: Path) -> None:
    """Do the calls one after the other, each manifest to stdout as it is committed; or submit them."""
    overrides = slurm_options(ctx)
    if submit:
        from slime_stages.cli.chain import submit_calls

        submit_calls(list(wanted), sbatch=sbatch, overrides=overrides)
        return
    if overrides:
        raise UsageError("--slurm-* are for jobs", hint="add --submit, or leave them out")
    from slime_stages.drain import install_drain
    from slime_stages.launch.run_stage import run_stage
    from slime_stages.stage import finish_deferred

    install_drain()
    for call in wanted:
        typer.echo(run_stage(call))
        finish_deferred()


def calls(
    stage: str,
    run: Path | None,
    iteration: int | None,
    shard: int | None,
    *,
    split: str | None = None,
    force: bool = False,
    manifests: list[str] | None = None,
) -> Iterator[StageCall]:
    """What a command line asks for."""
    from slime_stages.launch.plans import ensure_eval_plan, ensure_plan
    from slime_stages.launch.start_run import mend_run
    from slime_stages.launch.states import first_incomplete
    from slime_stages.rundir import find_run
    from slime_stages.stage import StageCall

    if manifests:
        yield from piped_calls(stage, manifests, force=force)
        return
    run_dir = find_run(run)
    mend_run(run_dir)
    number = first_incomplete(run_dir) if iteration is None else iteration
    plan = ensure_plan(run_dir, number) if split is None else ensure_eval_plan(run_dir, number, split)
    for each in shards_of(stage, plan, shard):
        yield StageCall(
            stage=stage, run=run_dir.root, iteration=number, shard=each, split=split or "train", force=force
        )


def shards_of(stage: str, plan: Plan, shard: int | None) -> list[int | None]:
    """The shards meant: none for train and sync, the one asked for, or all."""
    if stage in ("train", "sync"):
        return [None]
    if shard is None:
        return list(range(plan.shard_count))
    if shard >= plan.shard_count:
        raise UsageError(
            f"iteration {plan.iteration} has {plan.shard_count} shards; there is no shard {shard}",
            hint=f"--shard 0 to --shard {plan.shard_count - 1}",
        )
    return [shard]


def piped_calls(stage: str, manifests: Iterable[str], *, force: bool) -> Iterator[StageCall]:
    """One call for each manifest of a sharded stage; for train and sync one for each iteration named.

    MissingInputError for none at all: the command before in the pipe has failed.
    """
    from slime_stages.manifest import read_manifest
    from slime_stages.stage import StageCall

    lines = sys.stdin if list(manifests) == ["-"] else manifests
    if stage != "reward":
        lines = list(lines)  # every shard is needed, and the last line comes with the last one
    seen = set()
    for path in (Path(line.strip()).absolute() for line in lines if line.strip()):
        manifest = read_manifest(path)
        call = StageCall(
            stage=stage,
            run=run_of(path).root,
            iteration=manifest.iteration,
            shard=manifest.shard if stage == "reward" else None,
            split=manifest.split,
            force=force,
        )
        if call not in seen:
            seen.add(call)
            yield call
    if not seen:
        raise MissingInputError(
            f"{stage} was given no manifest", hint="the command before it in the pipe says above why it made none"
        )


def run_of(path: Path) -> RunDir:
    """The run that a manifest lies in."""
    from slime_stages.rundir import RunDir

    for folder in path.parents:
        if RunDir(folder).recover():
            return RunDir(folder)
    raise DataError(f"{path} lies in no run", hint="give manifests that `slime-stages` printed")

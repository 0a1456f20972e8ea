"""The four stage programs as commands: `slime-stages rollout --shard 3`, alone or in a pipeline.

stdout carries the path of every manifest committed, one a line; `-` reads such paths, so that stages can be piped:

    slime-stages rollout | slime-stages reward - | slime-stages train - | slime-stages sync -

`reward --as NAME` scores what was rolled out once more, by settings of its own, and leaves the run's rewards alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.chain import DEFAULT_SBATCH, SbatchFolder
from slime_stages.cli.options import RunFolder, collect, takes_flags_of
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options
from slime_stages.errors import DataError, MissingInputError, UsageError

if TYPE_CHECKING:
    from slime_stages.run.plan import Plan
    from slime_stages.run.rundir import RunDir
    from slime_stages.stage import StageCall

Iteration = Annotated[
    int | None, typer.Option("--iter", metavar="I", min=0, help="Iteration. [default: the first incomplete one]")
]
Shard = Annotated[int | None, typer.Option("--shard", metavar="K", min=0, help="Shard. [default: all of them]")]
EvalName = Annotated[str | None, typer.Option("--eval", metavar="NAME", help="An evaluation set instead of training.")]
Until = Annotated[
    int | None,
    typer.Option("--until", metavar="I", min=1, help="With --rollout-streaming: go on to the iterations before this."),
]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is committed and fresh.")]
Submit = Annotated[bool, typer.Option("--submit", help="As a job, by sbatch/STAGE.sbatch; print its id and return.")]
OtherName = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Beside the run's rewards, by these settings. [default iteration: newest]"
    ),
]
Rewards = Annotated[
    str | None, typer.Option("--reward", metavar="NAME", help="Train on the rewards of this name; `own` for the run's.")
]
Accept = Annotated[
    list[str] | None,
    typer.Option("--accept", metavar="NAME", help="Train although this check refuses; the error names it. Repeatable."),
]
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
        until: Until = None,
        force: Force = False,
        submit: Submit = False,
        sbatch: SbatchFolder = DEFAULT_SBATCH,
        name: OtherName = None,
        rewards: Rewards = None,
        accept: Accept = None,
    ) -> None:
        wanted = calls(stage_named(stage, name), run, iteration, shard, split=split, force=force, manifests=manifests)
        if stage == "reward":
            wanted = by_settings(ctx, wanted, name)
        if until is not None:
            wanted = (replace(call, until=until) for call in wanted)
        if rewards is not None:
            wanted = training_on(wanted, rewards)
        if accept:
            wanted = training_with(wanted, accept)
        carry_out(wanted, ctx, submit=submit, sbatch=sbatch)

    if "name" not in without:
        takes_flags_of("reward")(command)
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
    without=("manifests", "name", "rewards", "accept"),
)
reward = stage_command(
    "reward",
    """Score the samples of rollout shards, and print the manifest of each.

    With --as NAME once more, by the settings given, which the name keeps; `show` compares them with the run's own.
    """,
    without=("rewards", "accept", "until"),
)
train = stage_command(
    "train",
    "Take the optimizer steps of an iteration, save a checkpoint, and print the manifest.",
    without=("shard", "split", "name", "until"),
)
sync = stage_command(
    "sync",
    "Publish the trained weights as the next version, checked, and print the manifest.",
    without=("shard", "split", "name", "rewards", "accept", "until"),
)


def stage_named(stage: str, name: str | None) -> str:
    from slime_stages.named_rewards import stage_of

    return stage if name is None else stage_of(name)


def by_settings(ctx: typer.Context, wanted: Iterator[StageCall], name: str | None) -> Iterator[StageCall]:
    """The calls of `reward`, with the settings on its command line."""
    from slime_stages.launch.rescore import refuse_settings, rescoring

    if name is None:
        refuse_settings(collect(ctx))
        return wanted
    return rescoring(wanted, collect(ctx))


def training_on(wanted: Iterable[StageCall], rewards: str) -> Iterator[StageCall]:
    """The calls of `train`, once their iterations read the rewards of this name."""
    from slime_stages.launch.rescore import train_on
    from slime_stages.run.rundir import RunDir

    for call in wanted:
        train_on(RunDir(call.run), call.iteration, rewards)
        yield call


def training_with(wanted: Iterable[StageCall], names: Collection[str]) -> Iterator[StageCall]:
    """The calls of `train`, once their iterations accept what these checks refuse."""
    from slime_stages.run.acceptance import accept
    from slime_stages.run.rundir import RunDir

    for call in wanted:
        accept(RunDir(call.run), call.iteration, names)
        yield call


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
    from slime_stages.run.announce import told_on_the_way
    from slime_stages.stage import finish_deferred

    install_drain()
    with told_on_the_way(print_manifest):
        for call in wanted:
            typer.echo(run_stage(call))
            finish_deferred()


def print_manifest(manifest: Path | None) -> None:
    """One that a call committed before its last."""
    if manifest is not None:
        typer.echo(manifest)


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
    from slime_stages.named_rewards import name_of
    from slime_stages.reading.lookup import newest_plan, plan_of
    from slime_stages.run.rundir import find_run
    from slime_stages.stage import StageCall

    if manifests:
        yield from piped_calls(stage, manifests, force=force)
        return
    run_dir = find_run(run)
    if name_of(stage) is not None:
        plan = (
            newest_plan(run_dir, split or "train")
            if iteration is None
            else plan_of(run_dir, iteration, split or "train")
        )
    else:
        mend_run(run_dir)
        number = first_incomplete(run_dir) if iteration is None else iteration
        plan = ensure_plan(run_dir, number) if split is None else ensure_eval_plan(run_dir, number, split)
    for each in shards_of(stage, plan, shard):
        yield StageCall(
            stage=stage, run=run_dir.root, iteration=plan.iteration, shard=each, split=split or "train", force=force
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
    from slime_stages.run.manifest import read_manifest
    from slime_stages.run.rundir import program_of
    from slime_stages.stage import StageCall

    lines = sys.stdin if list(manifests) == ["-"] else manifests
    is_sharded = program_of(stage) == "reward"
    if not is_sharded:
        lines = list(lines)  # every shard is needed, and the last line comes with the last one
    seen = set()
    for path in (Path(line.strip()).absolute() for line in lines if line.strip()):
        manifest = read_manifest(path)
        call = StageCall(
            stage=stage,
            run=run_of(path).root,
            iteration=manifest.iteration,
            shard=manifest.shard if is_sharded else None,
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
    from slime_stages.run.rundir import RunDir

    for folder in path.parents:
        if RunDir(folder).recover():
            return RunDir(folder)
    raise DataError(f"{path} lies in no run", hint="give manifests that `slime-stages` printed")

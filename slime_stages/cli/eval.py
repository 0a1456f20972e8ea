"""`slime-stages eval`: measure a version of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.chain import DEFAULT_SBATCH, SbatchFolder
from slime_stages.cli.options import RunFolder
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options
from slime_stages.errors import MissingInputError, UsageError

if TYPE_CHECKING:
    from slime_stages.run.plan import Plan
    from slime_stages.run.rundir import RunDir
    from slime_stages.stage import StageCall

Version = Annotated[
    int | None,
    typer.Option("--iter", "--version", metavar="V", min=0, help="Version of the weights. [default: the newest]"),
]
Names = Annotated[
    list[str] | None, typer.Option("--dataset", metavar="NAME", help="This set only; may be repeated. [default: all]")
]
Shards = Annotated[
    int | None, typer.Option("--shards", metavar="K", min=1, help="Parts of each set. [default: eval_shards]")
]
Submit = Annotated[bool, typer.Option("--submit", help="As jobs, by sbatch/STAGE.sbatch; print their ids and return.")]


@takes_slurm_options
def command(
    ctx: typer.Context,
    run: RunFolder = None,
    version: Version = None,
    names: Names = None,
    shards: Shards = None,
    submit: Submit = False,
    sbatch: SbatchFolder = DEFAULT_SBATCH,
) -> None:
    """Generate and score answers to the evaluation prompts with one version of the weights.

    Prints the manifest of every shard, and on stderr what they come to; `slime-stages status` has that, too.
    """
    from slime_stages.launch.plans import ensure_eval_plan
    from slime_stages.launch.start_run import mend_run
    from slime_stages.launch.states import first_incomplete
    from slime_stages.run.rundir import find_run

    overrides = slurm_options(ctx)
    if overrides and not submit:
        raise UsageError("--slurm-* are for jobs", hint="add --submit, or leave them out")
    run_dir = find_run(run)
    mend_run(run_dir)
    wanted = chosen_names(run_dir, names or [])
    number = first_incomplete(run_dir) if version is None else version
    if not run_dir.weights_path(number).exists():
        raise MissingInputError(
            f"{run_dir.root} has no weights {number}", hint=f"ls {run_dir.weights_path(0).parent}   shows which it has"
        )
    plans = [ensure_eval_plan(run_dir, number, name, shards=shards) for name in wanted]
    if submit:
        from slime_stages.cli.chain import submit_calls

        submit_calls(list(missing_calls(run_dir, plans)), sbatch=sbatch, overrides=overrides)
        return
    evaluate_here(run_dir, plans)
    print_evaluations(run_dir, plans)


def chosen_names(run: RunDir, names: Sequence[str]) -> list[str]:
    """The sets meant: those named, or all of the run."""
    from slime_stages.launch.start_run import current_revision
    from slime_stages.stage import read_config

    known = [name for name, _ in read_config(run, current_revision(run)).eval.datasets]
    if not known:
        raise UsageError(
            f"the run {run.root} has no evaluation set",
            hint="a run with --eval-prompt-data NAME FILE, or --eval-config FILE.yaml, has one",
        )
    for name in names:
        if name not in known:
            raise UsageError(f"the run {run.root} has no evaluation set {name}", hint=f"it has {', '.join(known)}")
    return list(dict.fromkeys(names)) or known


def missing_calls(run: RunDir, plans: Sequence[Plan]) -> Iterator[StageCall]:
    """What is not committed and fresh, the stages of a set one behind the other."""
    from slime_stages.launch.states import iteration_states

    for plan in plans:
        yield from (item.call for item in iteration_states(run, plan) if not item.state.is_fresh)


def evaluate_here(run: RunDir, plans: Sequence[Plan]) -> None:
    """Every shard of every set, with one engine for all of them; a manifest to stdout as it is committed."""
    from slime_stages.config.hooks import uses_engines
    from slime_stages.drain import install_drain
    from slime_stages.launch.run_stage import run_stage
    from slime_stages.launch.states import calls_of
    from slime_stages.launch.warm import WarmEngine
    from slime_stages.stage import read_config

    install_drain()
    open_calls = set(missing_calls(run, plans))
    with WarmEngine(run, policy_version=plans[0].policy_version) as engine:
        for plan in plans:
            config = read_config(run, plan.config_revision)
            for call in calls_of(run, plan):
                if call.stage == "rollout" and call in open_calls and uses_engines(config, plan.split):
                    engine.wait()
                typer.echo(run_stage(call))


def print_evaluations(run: RunDir, plans: Sequence[Plan]) -> None:
    """A row a set, on stderr: stdout is for manifests."""
    from slime_stages.cli.iteration_tables import number, percent
    from slime_stages.cli.tables import make_console, print_table
    from slime_stages.metrics import evaluation_metrics, read_scored
    from slime_stages.stage import read_config

    rows = []
    for plan in plans:
        scored = read_scored(run, plan)
        if scored is None:
            continue
        name = plan.split
        metrics = evaluation_metrics(scored, read_config(run, plan.config_revision), name)
        rates = {key.removeprefix(f"eval/{name}-"): value for key, value in metrics.items() if "-pass@" in key}
        rows.append(
            {
                "evaluation": name,
                "weights": str(plan.policy_version),
                "samples": f"{len(scored.rewards):,}",
                "mean reward": number(metrics[f"eval/{name}"], 3),
                "truncated": percent(metrics[f"eval/{name}-truncated_ratio"]),
                "no reward": percent(metrics[f"eval/{name}-null_ratio"]),
                "mean length": number(metrics.get(f"eval/{name}/response_len/mean"), 1),
                **{key: number(value, 3) for key, value in rates.items()},
            }
        )
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if rows:
        full = [{column: row.get(column, "-") for column in columns} for row in rows]
        print_table(make_console(stderr=True), full, droppable=("mean length", "no reward", "samples"))

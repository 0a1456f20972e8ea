"""`slime-stages plan`: what iterations on SLURM would be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.chain import DEFAULT_SBATCH, SbatchFolder
from slime_stages.cli.options import RunFolder
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.chain_state import Chain
    from slime_stages.launch.job_graph import JobKey
    from slime_stages.launch.preview import JobPreview, Preview
    from slime_stages.run.rundir import RunDir

SHOWN = 3
"""Iterations whose jobs are listed without `--all`; the others are alike."""
DROPPABLE = ("CPU-h", "cpus", "memory", "partition", "GPU-h")
ARRAY_SIZE = 1001
"""SLURM's own MaxArraySize, where there is no scheduler to ask."""

Count = Annotated[int, typer.Option("--n", metavar="N", min=0, help="Iterations, as of `iter --n N`.")]
Scripts = Annotated[
    bool, typer.Option("--scripts", help="Print what sbatch would be given for the first iteration instead.")
]
Everything = Annotated[bool, typer.Option("--all", help=f"List the jobs of all iterations, not of {SHOWN}.")]


@takes_slurm_options
def command(
    ctx: typer.Context,
    n: Count = 1,
    run: RunFolder = None,
    sbatch: SbatchFolder = DEFAULT_SBATCH,
    scripts: Scripts = False,
    everything: Everything = False,
) -> None:
    """Show what `iter --executor slurm` would submit: jobs, what waits for what, hours and bytes at most.

    Nothing is written and nothing is submitted.
    """
    from slime_stages.launch.iterate import iterations_to_run
    from slime_stages.run.rundir import find_run

    run_dir = find_run(run)
    iterations = iterations_to_run(run_dir, n)
    chain = planned_chain(run_dir, iterations, sbatch, slurm_options(ctx), adds=n > 0)
    print_plan(run_dir, iterations, chain, scripts=scripts, everything=everything)


def planned_chain(
    run: RunDir, iterations: range, sbatch: Path, overrides: dict[str, str | bool], *, adds: bool
) -> Chain:
    """As `iter` would begin it."""
    from slime_stages.cli.chain import new_chain

    return new_chain(
        run,
        iterations.stop,
        adds=adds,
        sbatch=sbatch,
        lookahead=2,
        overrides=overrides,
        array_parallelism=None,
        max_retries=2,
        accept_stale=False,
    )


def print_plan(
    run: RunDir, iterations: range, chain: Chain, *, scripts: bool = False, everything: bool = False
) -> None:
    """Also what `iter --executor slurm --dry-run` prints."""
    from slime_stages.cli.tables import make_console
    from slime_stages.launch.iterate import iterations_to_run
    from slime_stages.launch.preview import preview

    found = preview(run, iterations, chain)
    if scripts:
        print_scripts(run, found, chain)
        return
    console = make_console()
    print_preview(console, found, shown=len(iterations) if everything else SHOWN)
    count = iterations.stop - iterations_to_run(run, 0).stop
    command = f"slime-stages iter --run {run.root} --executor slurm --n {count}"
    console.print(f"\nnext: {command}", style="bold", soft_wrap=True)


def print_scripts(run: RunDir, found: Preview, chain: Chain) -> None:
    """One script after the other, each under a line that names its job."""
    from slime_stages.launch.preview import scripts

    first = [job.job for job in found.jobs if job.job.iteration == found.jobs[0].job.iteration]
    for job, text in scripts(run, first, chain, max_array_size=array_size()):
        typer.echo(f"##### {title(job.key)}\n{text}")


def array_size() -> int:
    from slime_stages.errors import SlimeStagesError
    from slime_stages.slurm.queue import scheduler_limits

    try:
        return scheduler_limits().max_array_size
    except SlimeStagesError:  # a plan needs no scheduler
        return ARRAY_SIZE


def print_preview(console: Console, found: Preview, *, shown: int) -> None:
    """The jobs in their order, then what they cost at most and probably."""
    from slime_stages.cli.tables import print_table

    count, tasks = len(found.jobs), sum(job.tasks for job in found.jobs)
    first, last = found.iterations.start, found.iterations.stop - 1
    which = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    if not found.jobs:
        console.print(f"{found.run}: there is nothing to submit", soft_wrap=True)
        return
    console.print(f"{found.run}: {which}, {plural(count, 'job')} with {plural(tasks, 'task')}\n", soft_wrap=True)
    jobs = [job for job in found.jobs if job.job.iteration < first + shown or job.job.iteration > last]
    print_table(console, [job_row(job) for job in jobs], droppable=DROPPABLE)
    if count > len(jobs):
        console.print(f"({count - len(jobs)} more jobs, alike; --all shows them)", style="dim")
    console.print("behind the last one queued, a small job sees to it that the chain goes on", style="dim")
    console.print("\n" + "\n".join([*hours_lines(found), *disk_lines(found)]), soft_wrap=True)
    if found.disk.total is not None and found.disk.total > found.disk.free:
        console.print("\nwarning: that is more than there is free", style="yellow", soft_wrap=True)
    for reason in found.stale[:1]:
        more = f", and {len(found.stale) - 1} more like it" if len(found.stale) > 1 else ""
        console.print(
            f"\n{reason}{more}: `iter` stops there, unless with --accept-stale", style="yellow", soft_wrap=True
        )


def job_row(job: JobPreview) -> dict[str, str]:
    from slime_stages.slurm.jobs import shard_ranges

    own, asked = job.job, job.resources
    return {
        "job": branch(job) + title(own.key),
        "shards": shard_ranges(own.shards) or "-",
        "after": ", ".join(title(key) for key in own.depends_on) or "-",
        "partition": asked.partition or "?",
        "gpus": known(asked.gpus),
        "cpus": known(asked.cpus),
        "memory": asked.memory or "?",
        "time": limit(asked.seconds),
        "took": duration(job.task_seconds),
        "GPU-h": hours(job.most_gpu_hours),
        "CPU-h": hours(job.most_cpu_hours),
    }


def branch(job: JobPreview) -> str:
    """An iteration's jobs hang below its rollout."""
    return {"rollout": "", "reward": "├─ " if job.job.split == "train" else "└─ ", "train": "├─ "}.get(
        job.job.stage, "└─ "
    )


def title(key: JobKey) -> str:
    return f"{key.stage} {key.iteration}" + ("" if key.split == "train" else f" {key.split}")


def hours_lines(found: Preview) -> list[str]:
    """At most, by the headers; about, by what recent iterations took."""
    lines = [f"at most: {_sum(found, 'most_gpu_hours')} GPU-hours, {_sum(found, 'most_cpu_hours')} CPU-hours"]
    if any(job.task_seconds is not None for job in found.jobs):
        lines.append(f"about:   {_sum(found, 'gpu_hours')} GPU-hours, {_sum(found, 'cpu_hours')} CPU-hours")
    if found.iteration_seconds is not None:
        lines[-1] += f"; {duration(found.iteration_seconds)} an iteration if no job has to wait"
    return lines


def _sum(found: Preview, name: str) -> str:
    value, is_whole = found.total(name)
    return hours(value) if is_whole else f"{hours(value)} + ?"


def disk_lines(found: Preview) -> list[str]:
    disk = found.disk
    source = "as recent iterations took" if disk.is_measured else "if every sample is as long as it may be"
    total = "?" if disk.total is None else size(disk.total)
    return [
        f"disk:    {size(disk.data_per_iteration)} an iteration ({source}), "
        f"{size(disk.weights)} a version of the weights, {size(disk.checkpoint)} a checkpoint",
        f"         {total} in all at most; {size(disk.free)} are free",
    ]


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def known(value: int | None) -> str:
    return "?" if value is None else str(value)


def limit(seconds: int | None) -> str:
    from slime_stages.slurm.resources import clock

    return "?" if seconds is None else clock(seconds)


def duration(seconds: float | None) -> str:
    """`42 s`, `12.5 min`, `3.2 h`."""
    if seconds is None:
        return "-"
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def hours(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2g}"


def size(count: int | None) -> str:
    if count is None:
        return "?"
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}" if unit != "bytes" else f"{count} bytes"
        value /= 1000
    return f"{value:.3g} TB"

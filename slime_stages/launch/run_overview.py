"""What a person asks of a run: where each iteration stands, what jobs are at it, and what to type next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_stages.errors import SlimeStagesError
from slime_stages.launch.chain_state import read_chain
from slime_stages.launch.overview import STAGES, IterationOverview, Problem, RunJobs, TaskFact, evaluation_names
from slime_stages.launch.summaries import Summaries
from slime_stages.run.rundir import RunDir

BEGUN = frozenset(("plan.json", *STAGES))
"""What the folder of an iteration holds; one that only holds evaluations is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOverview:
    """The chain of jobs that makes the run's iterations, where there is one."""

    target: int
    """One past the last iteration wanted."""
    lookahead: int
    stopped: str | None
    """Why nothing more is submitted."""
    advice: str | None
    """What to do about it."""
    is_driven: bool = False
    """A process of its own submits what comes next, not its jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A whole run."""

    run: str
    run_id: str
    iterations: tuple[IterationOverview, ...]
    evaluations: tuple[IterationOverview, ...]
    next_command: str
    chain: ChainOverview | None = None
    jobs: RunJobs

    @property
    def problems(self) -> list[Problem]:
        return [problem for part in (*self.iterations, *self.evaluations) for problem in part.problems]

    @property
    def tasks(self) -> list[TaskFact]:
        return [task for part in (*self.iterations, *self.evaluations) for task in part.tasks]


def run_overview(run: RunDir, summaries: Summaries | None = None, *, newest: int | None = None) -> RunOverview:
    """Every iteration and evaluation of the run, in order. `summaries` of an earlier look spare some of the work.

    `newest`: so many of each are looked at closely, and what is not complete (see `summaries.py`); None: all.
    """
    holds = {number: names_in(run.iteration_path(number)) for number in run.iterations()}
    begun = [(number, "train") for number, names in holds.items() if BEGUN.intersection(names)]
    evaluated = [
        (number, split) for number, names in holds.items() if "eval" in names for split in evaluation_names(run, number)
    ]
    closely = None if newest is None else [*begun[-newest:], *evaluated[-newest:]]
    found = (summaries or Summaries(run)).overviews([*begun, *evaluated], closely=closely)
    iterations, evaluations, jobs = tuple(found[: len(begun)]), tuple(found[len(begun) :]), RunJobs()
    if run.jobs_path.is_dir():
        from slime_stages.launch.job_facts import with_jobs

        iterations, evaluations, jobs = with_jobs(run, iterations, evaluations)
    chain = chain_overview(run)
    return RunOverview(
        run=str(run.root),
        run_id=run.run_id(),
        iterations=iterations,
        evaluations=evaluations,
        next_command=_next_command(run, iterations, evaluations, chain, jobs),
        chain=chain,
        jobs=jobs,
    )


def names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def chain_overview(run: RunDir) -> ChainOverview | None:
    """None if there is no chain. One that cannot be read has stopped."""
    try:
        chain = read_chain(run)
    except SlimeStagesError as error:
        return ChainOverview(target=0, lookahead=0, stopped=error.message, advice=error.hint)
    if chain is None:
        return None
    return ChainOverview(
        target=chain.target,
        lookahead=chain.lookahead,
        stopped=chain.stopped,
        advice=chain.advice,
        is_driven=chain.is_driven,
    )


def _next_command(
    run: RunDir,
    iterations: Sequence[IterationOverview],
    evaluations: Sequence[IterationOverview],
    chain: ChainOverview | None,
    jobs: RunJobs,
) -> str:
    if chain is not None and chain.stopped is not None and not jobs.running:
        return chain.advice or f"slime-stages logs --run {run.root}"
    if jobs.count or any(task.activity == "submitted" for part in (*iterations, *evaluations) for task in part.tasks):
        return f"slime-stages status --run {run.root} --watch"
    if chain is not None and len([part for part in iterations if part.is_complete]) < chain.target:
        return f"slime-stages iter --n 0 --executor slurm{' --drive' * chain.is_driven} --run {run.root}"
    for part in iterations:
        if part.next_command is not None:
            return part.next_command
    for part in evaluations:
        # weights that retention has removed cannot be evaluated any more
        if part.next_command is not None and run.weights_path(part.iteration).exists():
            return part.next_command
    return f"slime-stages iter --run {run.root} --n 1" + (" --executor slurm" if chain is not None else "")

"""Making one output again on purpose, and what depends on it: here, or by the run's chain of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slime_stages.errors import MissingInputError, SlimeStagesError, UsageError
from slime_stages.launch.chain_state import chain_begun_now, read_chain, write_chain
from slime_stages.launch.iterate import Event, run_call
from slime_stages.launch.job_facts import ask_scheduler, has_scheduler
from slime_stages.launch.local import LocalExecutor
from slime_stages.launch.overview import evaluation_names
from slime_stages.launch.states import calls_of, state_of
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_config, read_run_plan, say, supersede
from slime_stages.weights.outputs import is_past_repair

if TYPE_CHECKING:
    from slime_stages.launch.chain import Advance

STAGES = ("rollout", "reward", "train", "sync")


def calls_to_rerun(run: RunDir, stage: str, iteration: int, shard: int | None, split: str = "train") -> list[StageCall]:
    """The calls meant: one shard, or all of the stage. UsageError if what they need is not kept any more."""
    if stage not in STAGES or (split != "train" and stage in STAGES[2:]):
        raise UsageError(f"there is no stage {stage} to make again", hint=f"one of {', '.join(STAGES)}")
    plan = _plan(run, iteration, split)
    calls = [call for call in calls_of(run, plan) if call.stage == stage and shard in (None, call.shard)]
    if not calls:
        which = f"shards 0 to {plan.shard_count - 1}" if stage in STAGES[:2] else "no shards"
        raise UsageError(
            f"{stage} {iteration} has {which}; there is no shard {shard}", hint="leave out --shard for all"
        )
    if _is_past_repair(run, plan, stage):
        raise UsageError(
            f"{calls[0].title} cannot be made again: the weights or the checkpoint that it is made from are not kept",
            hint="--keep-weights and --keep-checkpoints say how many are, from the next run on",
        )
    return calls


def rerun_here(run: RunDir, calls: Sequence[StageCall], *, downstream: bool, on_event: Callable[[Event], None]) -> None:
    """Make them again, and with `downstream` what became stale by it, in this and the later iterations.

    UsageError while the run's chain has jobs in the queue, which would make them as well.
    """
    _refuse_while_jobs_are_at_it(run)
    with LocalExecutor() as executor:
        for call in calls:
            run_call(replace(call, force=True), executor, on_event)
        for plan, call in _downstream(run, calls) if downstream else ():
            state = state_of(run, plan, read_config(run, plan.config_revision), call)
            if state.is_fresh:
                continue
            if state.kind == "missing":
                say(f"{call.title} was not there before; neither it nor what depends on it is made")
                return
            if _is_past_repair(run, plan, call.stage):
                say(f"warning: {call.title} is {state.reason}, but what it was made from is not kept any more")
                return
            run_call(call, executor, on_event)


def rerun_as_jobs(run: RunDir, calls: Sequence[StageCall]) -> Advance:
    """Have the chain's jobs make them again, and what becomes stale by it: a chain leaves nothing stale behind."""
    chain = read_chain(run)
    if chain is None:
        raise UsageError(
            f"{run.root} has no chain of jobs", hint=f"slime-stages iter --n 0 --executor slurm --run {run.root}"
        )
    from slime_stages.launch.chain import advance
    from slime_stages.slurm.queue import scheduler_limits

    scheduler_limits()  # a scheduler that is away says so now, while nothing has changed
    for call in calls:
        plan = _plan(run, call.iteration, call.split)
        path = shard_manifest_path(run, plan, call.stage, call.shard)
        if path.exists():
            supersede(path)
    target = max(chain.target, *(call.iteration + 1 for call in calls))
    write_chain(run, replace(chain_begun_now(chain), target=target))
    return advance(run)


def _plan(run: RunDir, iteration: int, split: str) -> Plan:
    if not run.plan_path(iteration, split).exists():
        what = f"iteration {iteration}" + ("" if split == "train" else f" of {split}")
        raise MissingInputError(f"{what} was never begun", hint=f"slime-stages status --run {run.root}")
    return read_run_plan(run, iteration, split)


def _downstream(run: RunDir, calls: Sequence[StageCall]) -> Iterator[tuple[Plan, StageCall]]:
    """What can depend on the calls, in an order in which it can be made."""
    first = calls[0]
    shards = {call.shard for call in calls}
    plan = _plan(run, first.iteration, first.split)
    for call in calls_of(run, plan):
        is_later = STAGES.index(call.stage) > STAGES.index(first.stage)
        if is_later and (call.stage != "reward" or call.shard in shards):
            yield plan, call
    if first.split != "train":
        return
    for iteration in (number for number in run.iterations() if number > first.iteration):
        for split in (*evaluation_names(run, iteration), "train"):
            try:
                plan = read_run_plan(run, iteration, split)
            except SlimeStagesError as error:
                say(f"warning: {error}")
                continue
            for call in calls_of(run, plan):
                if split == "train" or _exists(run, plan, call):
                    yield plan, call


def _exists(run: RunDir, plan: Plan, call: StageCall) -> bool:
    return shard_manifest_path(run, plan, call.stage, call.shard).exists()


def _is_past_repair(run: RunDir, plan: Plan, stage: str) -> bool:
    return is_past_repair(run, stage, plan.start_version, generated_with=plan.policy_version)


def _refuse_while_jobs_are_at_it(run: RunDir) -> None:
    chain = read_chain(run)
    if chain is None or chain.stopped is not None or not has_scheduler():
        return
    _, jobs = ask_scheduler(run, ())
    if jobs.count:
        raise UsageError(
            f"the chain of {run.root} has {jobs.count} jobs in the queue, which would make it as well",
            hint=f"add --submit to have them make it again, or slime-stages cancel --run {run.root} first",
        )

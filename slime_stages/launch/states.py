"""Where a run stands: which outputs of which iterations are missing, fresh, stale or corrupt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import (
    reward_inputs,
    rollout_inputs,
    shard_manifest_path,
    sync_inputs,
    train_inputs,
)
from slime_stages.plan import Plan
from slime_stages.rundir import RunDir
from slime_stages.stage import StageCall, State, config_digest, output_state, read_config, read_run_plan
from slime_stages.weights.checkpoints import OPTIMIZER, check_checkpoint, iteration_folder
from slime_stages.weights.publish import check_weights


def _inputs(run: RunDir, plan: Plan, call: StageCall) -> dict[str, str]:
    if call.stage == "rollout":
        return rollout_inputs(run, plan)
    if call.stage == "reward":
        return reward_inputs(run, plan, call.shard or 0)
    return train_inputs(run, plan) if call.stage == "train" else sync_inputs(run, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """A stage call of an iteration and the state of its output."""

    call: StageCall
    state: State


def calls_of(run: RunDir, plan: Plan) -> Iterator[StageCall]:
    """The stage calls that make an iteration (or an evaluation), in an order in which they can run."""
    for stage in ("rollout", "reward"):
        for shard in range(plan.shard_count):
            yield StageCall(stage=stage, run=run.root, iteration=plan.iteration, shard=shard, split=plan.split)
    if plan.split == "train":
        for stage in ("train", "sync"):
            yield StageCall(stage=stage, run=run.root, iteration=plan.iteration)


def iteration_states(run: RunDir, plan: Plan, *, deep: bool = False) -> list[CallState]:
    """The state of every output of an iteration. `deep` reads the data too, to see that it is what was committed."""
    config = read_config(run, plan.config_revision)
    return [CallState(call=call, state=state_of(run, plan, config, call, deep=deep)) for call in calls_of(run, plan)]


def state_of(run: RunDir, plan: Plan, config: Config, call: StageCall, *, deep: bool = False) -> State:
    """The state of one output."""
    path = shard_manifest_path(run, plan, call.stage, call.shard)
    try:
        inputs = _inputs(run, plan, call)
    except SlimeStagesError as error:
        if path.exists():
            return State(kind="stale", reason=f"stale: {error}")
        return State(kind="missing")
    state = output_state(path, inputs, config_digest(config, call), deep=deep)
    if not deep or not state.is_fresh:
        return state
    try:
        check_outputs(run, plan, call)
    except SlimeStagesError as error:
        return State(kind="corrupt", reason=f"corrupt: {error}", manifest=state.manifest)
    return state


def check_outputs(run: RunDir, plan: Plan, call: StageCall) -> None:
    """What a stage makes besides its data file: the checkpoint of train, the weights of sync. Raises if not whole."""
    if call.stage == "train":
        check_checkpoint(iteration_folder(run.checkpoints_path, plan.policy_version + 1), part=OPTIMIZER)
    elif call.stage == "sync":
        check_weights(run.weights_path(plan.policy_version + 1))


def first_incomplete(run: RunDir) -> int:
    """The first iteration that has an output which is not fresh, or no plan."""
    for iteration in run.iterations():
        if not is_complete(run, iteration):
            return iteration
    return (run.iterations() or [-1])[-1] + 1


def is_complete(run: RunDir, iteration: int) -> bool:
    if not run.plan_path(iteration).exists():
        return False
    states = iteration_states(run, read_run_plan(run, iteration))
    return all(item.state.is_fresh for item in states)


def is_begun(run: RunDir, iteration: int) -> bool:
    """Whether any stage of the iteration has left anything."""
    folder = run.iteration_path(iteration)
    return any((folder / stage).exists() for stage in ("rollout", "reward", "train", "sync"))

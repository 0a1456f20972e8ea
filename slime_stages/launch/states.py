"""Where a run stands: which outputs of which iterations are missing, fresh, stale or corrupt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slime_stages.config import Config
from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.lineage import (
    manifests_kept,
    reward_inputs,
    rollout_inputs,
    shard_manifest_path,
    sync_inputs,
    train_inputs,
)
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, State, checked, config_digest, output_state, read_config, read_run_plan
from slime_stages.weights.outputs import check_outputs


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
    states: list[CallState] = []
    with manifests_kept() as kept:
        sources = _Sources(run, plan, config)
        for call in calls_of(run, plan):
            path = shard_manifest_path(run, plan, call.stage, call.shard)
            state = sources.state_of(call, path, deep=deep)
            if state.manifest is not None:
                kept[path] = state.manifest
            states.append(CallState(call=call, state=state))
    return states


def state_of(run: RunDir, plan: Plan, config: Config, call: StageCall, *, deep: bool = False) -> State:
    """The state of one output. `deep` reads it, checkpoints and weights included, for its digests."""
    path = shard_manifest_path(run, plan, call.stage, call.shard)
    return _Sources(run, plan, config).state_of(call, path, deep=deep)


class _Sources:
    """What the outputs of an iteration are made from; what all shards have in common is digested once."""

    def __init__(self, run: RunDir, plan: Plan, config: Config) -> None:
        self._run, self._plan, self._config = run, plan, config
        self._rollout: dict[str, str] = {}
        self._config_digests: dict[str, str] = {}

    def state_of(self, call: StageCall, path: Path, *, deep: bool) -> State:
        try:
            inputs = self._inputs(call)
        except SlimeStagesError as error:
            if path.exists():
                return State(kind="stale", reason=f"stale: {error}")
            return State(kind="missing")
        if call.stage not in self._config_digests:
            self._config_digests[call.stage] = config_digest(self._config, call)
        state = output_state(path, inputs, self._config_digests[call.stage], deep=deep)
        return checked(state, self._run, check_outputs) if deep else state

    def _inputs(self, call: StageCall) -> dict[str, str]:
        if call.stage == "rollout":
            if self._plan.carry_from is not None:
                return rollout_inputs(self._run, self._plan, call.shard or 0)
            self._rollout = self._rollout or rollout_inputs(self._run, self._plan)
            return self._rollout
        if call.stage == "reward":
            return reward_inputs(self._run, self._plan, call.shard or 0)
        return train_inputs(self._run, self._plan) if call.stage == "train" else sync_inputs(self._run, self._plan)


def first_incomplete(run: RunDir) -> int:
    """The first iteration that has an output which is not fresh, or no plan."""
    from slime_stages.launch.summaries import Summaries

    end = (run.iterations() or [-1])[-1] + 1
    found = Summaries(run).overviews([(iteration, "train") for iteration in range(end)]) if end else []
    return next((number for number, overview in enumerate(found) if not overview.is_complete), end)


def is_complete(run: RunDir, iteration: int) -> bool:
    if not run.plan_path(iteration).exists():
        return False
    try:
        states = iteration_states(run, read_run_plan(run, iteration))
    except DataError:  # its plan, which is made again before anything else is done in it
        return False
    return all(item.state.is_fresh for item in states)


def has_rollouts(run: RunDir, iteration: int) -> bool:
    """Whether every rollout of the iteration is there, so that no engine is needed."""
    found = list(run.stage_path("rollout", iteration).glob("shard-*-of-*.json"))
    return bool(found) and len(found) == int(found[0].stem.rpartition("-of-")[2])


def is_begun(run: RunDir, iteration: int) -> bool:
    """Whether any stage of the iteration has left anything."""
    folder = run.iteration_path(iteration)
    return any((folder / stage).exists() for stage in ("rollout", "reward", "train", "sync"))

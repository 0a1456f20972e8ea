"""Iterations on this machine: every stage in turn, with the engine and the imports kept warm in between.

The files are the state: what is committed and fresh is skipped, what is missing or corrupt is made, what is stale is
refused. So an interrupted loop goes on where it was, by the same command.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from slime_stages.config import Config
from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.launch.local import LocalExecutor
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan, evaluates, needed_versions
from slime_stages.launch.start_run import current_revision
from slime_stages.launch.states import (
    calls_of,
    first_incomplete,
    has_rollouts,
    is_begun,
    iteration_states,
    state_of,
)
from slime_stages.launch.streams import OnStream, Streams
from slime_stages.launch.warm import WarmEngine
from slime_stages.lineage import command, shard_manifest_path
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_config, say
from slime_stages.weights.checkpoints import critic_checkpoints, has_weights, iteration_folder, prune_checkpoints
from slime_stages.weights.outputs import is_past_repair
from slime_stages.weights.publish import prune_weights

SETTLE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, for whoever shows it."""

    kind: str
    """start (of a call), done (of a call), iteration (is complete) or evaluation (is complete)."""
    iteration: int
    call: StageCall | None = None
    seconds: float = 0.0
    manifest: str = ""


def iterations_to_run(run: RunDir, count: int) -> range:
    """The iterations that a call for `count` more works on: first those that are not whole, an interrupted one among
    them. For 0 more, all there are: each is read, and what was lost or altered is made again."""
    end = next((number + 1 for number in reversed(run.iterations()) if is_begun(run, number)), 0)
    return range(first_incomplete(run) if count else 0, end + count)


def iterate(
    run: RunDir,
    iterations: range,
    *,
    executor: LocalExecutor,
    on_event: Callable[[Event], None],
    on_stream: OnStream | None = None,
    accept_stale: bool = False,
) -> None:
    """Run the iterations, with evaluations where they are due and after the last one.

    Raises the error of the stage that failed, with its exit code; everything before it stays committed.
    """
    if not iterations:
        return
    _check_past(run, iterations.start, executor, on_event)
    planned = ensure_plan(run, iterations.start).policy_version
    version = planned if run.weights_path(planned).exists() else 0
    with (
        WarmEngine(run, policy_version=version) as engine,
        Streams(run=run, until=iterations.stop, on_stream=on_stream) as streams,
    ):
        loop = _Loop(
            run=run,
            executor=executor,
            on_event=on_event,
            accept_stale=accept_stale,
            engine=engine,
            streams=streams,
        )
        loop.begin(iterations)
        closely = [iteration for iteration in iterations if is_begun(run, iteration)]
        for iteration in iterations:
            deep = iteration in (closely if iterations[-1] in closely else closely[-1:])
            loop.evaluate(iteration, deep=deep)
            loop.complete(iteration, deep=deep)
            retain(run, iteration)
        loop.evaluate(iterations.stop, deep=False, final=True)


@dataclass(slots=True, kw_only=True)
class _Loop:
    run: RunDir
    executor: LocalExecutor
    on_event: Callable[[Event], None]
    accept_stale: bool
    engine: WarmEngine
    streams: Streams

    def begin(self, iterations: range) -> None:
        """Start what the first missing rollout needs, while all that comes before it is looked at."""
        missing = next((iteration for iteration in iterations if not has_rollouts(self.run, iteration)), None)
        if missing is None:
            return
        plan = self._planned(missing)
        if not self._streams(plan):
            self.engine.start()
            return
        for call in calls_of(self.run, plan):
            if call.stage == "rollout":
                self.streams.begin(call)

    def complete(self, iteration: int, *, deep: bool) -> None:
        """Make whatever of the iteration is not fresh."""
        plan = self._planned(iteration)
        if any(item.state.kind != "fresh" for item in iteration_states(self.run, plan, deep=deep)):
            self._run_all(plan, deep=deep)
        self.on_event(Event(kind="iteration", iteration=iteration))

    def evaluate(self, version: int, *, deep: bool, final: bool = False) -> None:
        """Evaluate a version of the weights on every set, if that is due and not done, and the weights are kept."""
        config = read_config(self.run, current_revision(self.run))
        wanted = evaluates(config, version) or (final and config.eval.eval_interval is not None)
        for split, _ in config.eval.datasets if wanted and self.run.weights_path(version).exists() else ():
            self._run_all(ensure_eval_plan(self.run, version, split), deep=deep)
            self.on_event(Event(kind="evaluation", iteration=version))

    def _streams(self, plan: Plan) -> bool:
        return plan.split == "train" and read_config(self.run, plan.config_revision).rollout.rollout_streaming

    def _planned(self, iteration: int) -> Plan:
        """The plan of an iteration, and of those that a stream may get to while this one is trained."""
        plan = ensure_plan(self.run, iteration)
        if self._streams(plan):
            ahead = iteration + 2 + read_config(self.run, plan.config_revision).rollout.staleness
            for number in range(iteration + 1, min(ahead, self.streams.until)):
                ensure_plan(self.run, number)
        return plan

    def _run_all(self, plan: Plan, *, deep: bool) -> None:
        """Run every call whose output is not fresh. What became stale by that is made again; what was, is refused."""
        config = read_config(self.run, plan.config_revision)
        remade = False
        for call in calls_of(self.run, plan):
            state = state_of(self.run, plan, config, call, deep=deep)
            if state.is_fresh or (state.kind == "stale" and self.accept_stale and not remade):
                continue
            if state.kind == "stale" and not remade:
                raise _stale(call, state.reason, self.run)
            if is_past_repair(self.run, call.stage, plan.start_version, generated_with=plan.policy_version):
                say(
                    f"warning: {call.title} is {state.reason or state.kind}; what it was made from is not kept any more"
                )
                continue
            self._run(call, plan, config)
            remade = True

    def _run(self, call: StageCall, plan: Plan, config: Config) -> None:
        if call.stage != "rollout" or not self._streams(plan):
            if call.stage == "rollout":
                self.engine.wait()
            run_call(call, self.executor, self.on_event)
            return
        path = shard_manifest_path(self.run, plan, "rollout", call.shard)
        self.on_event(Event(kind="start", iteration=call.iteration, call=call))
        started = time.monotonic()
        self.streams.wait_for(call, lambda: path.exists() and state_of(self.run, plan, config, call).is_fresh)
        seconds = time.monotonic() - started
        self.on_event(Event(kind="done", iteration=call.iteration, call=call, seconds=seconds, manifest=str(path)))


def run_call(call: StageCall, executor: LocalExecutor, on_event: Callable[[Event], None]) -> None:
    """Run one call to its end; raises its error if it failed."""
    on_event(Event(kind="start", iteration=call.iteration, call=call))
    started = time.monotonic()
    result = executor.run(call)
    if result.exit_code == 130:
        raise KeyboardInterrupt
    if result.exit_code:
        raise SlimeStagesError.with_exit_code(result.exit_code, result.message, hint=result.hint)
    seconds = time.monotonic() - started
    on_event(Event(kind="done", iteration=call.iteration, call=call, seconds=seconds, manifest=result.manifest))


def _check_past(run: RunDir, first: int, executor: LocalExecutor, on_event: Callable[[Event], None]) -> None:
    """Make again what the first iteration needs of those before it, if it was lost or altered: the policy that it
    trains, and weights that it or a later one generates with."""
    if first == 0:
        return
    calls = [StageCall(stage="train", run=run.root, iteration=first - 1)]
    for version in sorted(needed_versions(run, first) | {first}):
        if 0 < version <= first:
            is_lost = version < first and _is_lost(run, version)
            calls.append(StageCall(stage="sync", run=run.root, iteration=version - 1, force=is_lost))
    for call in calls:
        plan = ensure_plan(run, call.iteration)
        config = read_config(run, plan.config_revision)
        if call.force or state_of(run, plan, config, call, deep=True).kind == "corrupt":
            run_call(call, executor, on_event)


def _is_lost(run: RunDir, version: int) -> bool:
    """Whether weights are gone that can be made again: those that retention has removed cannot."""
    checkpoint = iteration_folder(run.checkpoints_path, version)
    return not run.weights_path(version).exists() and has_weights(checkpoint)


def _stale(call: StageCall, reason: str, run: RunDir) -> DataError:
    return DataError(
        f"{call.title} is {reason}",
        hint=f"{command(run, call.stage, call.iteration, call.shard)}   makes it again; "
        "or add --accept-stale to go on with it as it is",
    )


def retain(run: RunDir, iteration: int) -> None:
    """Remove checkpoints and weights that the config does not keep. What later iterations need stays."""
    config: Config = read_config(run, current_revision(run))
    kept, version = config.checkpoint, iteration + 1
    needed = {0, version} | needed_versions(run, version)
    reference = config.algorithm.reference_version(version)
    prune_checkpoints(run.checkpoints_path, kept.keep_checkpoints, kept.save_interval, {version, reference})
    critics = critic_checkpoints(run.checkpoints_path)
    prune_checkpoints(critics, kept.keep_checkpoints, kept.save_interval, {version})
    prune_weights(run.weights_path(0).parent, kept.keep_weights, kept.save_interval, needed)

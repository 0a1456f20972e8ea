"""What each output of a run is made from: the digests that decide whether it is still fresh.

plan, weights of its policy version ─► rollout ─► reward ─┐
policy that the iteration before trained ─────────────────┴► train ─► sync ─► the next version of the weights
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from slime_stages.errors import DataError, MissingInputError, SlimeStagesError
from slime_stages.named_rewards import OWN, chosen_stage, name_of
from slime_stages.run.digest import digest_json
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir, program_of
from slime_stages.stage import StageCall, config_digest, read_run_plan
from slime_stages.weights.record import read_weights_record

if TYPE_CHECKING:
    from slime_stages.config import Config
    from slime_stages.run.carry import HandOver, Inheritance
    from slime_stages.run.journal import Journal

DATA_SOURCE = "data_source"
"""What a rollout is made from, and makes, where a class of the user's chooses the prompts."""

Kept = dict[Path, Manifest | SlimeStagesError]
_kept: ContextVar[Kept | None] = ContextVar("kept_manifests", default=None)


@contextmanager
def manifests_kept() -> Iterator[Kept]:
    """Within the block, what outputs are made from is read once, or refused once; yields what is known, to be added to.

    Within another such block it is that one's.
    """
    known = _kept.get()
    kept: Kept = {} if known is None else known
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def shard_manifest_path(run: RunDir, plan: Plan, stage: str, shard: int | None) -> Path:
    """Where a stage's manifest lies; `shard` is None for train and sync."""
    return _manifest_path(run, stage, plan.iteration, shard, plan.shard_count, plan.split)


def rollout_inputs(run: RunDir, plan: Plan, shard: int = 0) -> dict[str, str]:
    """The same for all shards, where nothing is handed over from one iteration to another."""
    inputs = {"plan": plan.digest, "weights": weights_content(run, plan.policy_version)}
    if plan.data_source_from is not None:
        inputs[DATA_SOURCE] = _data_source_content(run, _earlier_plan(run, plan.data_source_from))
    return inputs if plan.carry_from is None else {**inputs, **inheritance(run, plan, shard).inputs}


def _data_source_content(run: RunDir, before: Plan) -> str:
    """Digest of the state of the user's data source after an iteration; empty where it had none yet."""
    record = committed(run, before, "rollout", 0).outputs.get(DATA_SOURCE, {})
    return str(record.get("content", ""))


def inheritance(run: RunDir, plan: Plan, shard: int) -> Inheritance:
    """What a shard takes over from earlier iterations, and where its own prompts begin.

    MissingInputError, with the command that makes it, if a rollout that it comes from is not there.
    """
    from slime_stages.run.carry import Inheritance, begun_anew, continued

    assert plan.carry_from is not None
    before = {iteration: _earlier_plan(run, iteration) for iteration in plan.carry_from}
    taken = tuple(
        _hand_over(run, old, number)
        for old in before.values()
        for number in range(shard, old.shard_count, plan.shard_count)
    )
    if len(before) == 1 and len(taken) == 1:
        [old], [found] = before.values(), taken
        if (stream := continued(plan, shard, old, found)) is not None:
            return Inheritance(taken=taken, read=taken, stream=stream, first=found.next)
    behind = tuple(
        _hand_over(run, old, number) for old in _newest_carrying(run, plan) for number in range(old.shard_count)
    )
    read = tuple(dict.fromkeys((*taken, *behind)))
    return Inheritance(taken=taken, read=read, stream=begun_anew(plan, shard, behind), first=0)


def _newest_carrying(run: RunDir, plan: Plan) -> Iterator[Plan]:
    """The newest iterations that are done when this one begins: all streams there were, at their latest."""
    newest, step = plan.taken_until - 1, 1
    for iteration in range(newest, -1, -1):
        if iteration <= newest - step:
            return
        old = _earlier_plan(run, iteration)
        if old.carry_from is None:
            return
        step = max(step, old.stream_step or 1)
        yield old


def _earlier_plan(run: RunDir, iteration: int) -> Plan:
    """Asked for by every shard of an iteration."""
    path = run.plan_path(iteration)
    return _plan_as_of(run, iteration, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=64)
def _plan_as_of(run: RunDir, iteration: int, _changed: int) -> Plan:
    return read_run_plan(run, iteration)


def _hand_over(run: RunDir, plan: Plan, shard: int) -> HandOver:
    from slime_stages.run.carry import hand_over_of

    try:
        return hand_over_of(run, plan, shard, committed(run, plan, "rollout", shard))
    except SlimeStagesError as error:
        error.hint = command(run, "rollout", plan.iteration, shard)
        raise


def journal_of(run: RunDir, plan: Plan, config: Config, call: StageCall) -> Journal:
    """Where a rollout call keeps its finished groups; asked otherwise, none of them counts."""
    from slime_stages.run.journal import Journal

    shard = call.shard or 0
    inputs = rollout_inputs(run, plan, shard)
    carried = "" if plan.carry_from is None else f" {digest_json(inputs)}"
    return Journal(
        run.journal_path(call.iteration, shard, call.split),
        iteration=call.iteration,
        shard=shard,
        fingerprint=f"{plan.digest} {inputs['weights']} {config_digest(config, call)}{carried}",
    )


def reward_inputs(run: RunDir, plan: Plan, shard: int) -> dict[str, str]:
    return {"rollout": committed(run, plan, "rollout", shard).content}


def train_inputs(run: RunDir, plan: Plan) -> dict[str, str]:
    inputs = {"policy": policy_content(run, plan.start_version)}
    rewards = chosen_stage(run, plan.iteration)
    for shard in range(plan.shard_count):
        for stage in ("rollout", rewards):
            inputs[f"{stage}/{shard:05d}"] = committed(run, plan, stage, shard).content
        if rewards != OWN:
            _check_named(run, plan, rewards, shard)
    return inputs


def _check_named(run: RunDir, plan: Plan, stage: str, shard: int) -> None:
    """No chain keeps them up to date. DataError if they are of an earlier rollout."""
    if committed(run, plan, stage, shard).inputs != reward_inputs(run, plan, shard):
        raise DataError(
            f"{stage} {plan.iteration}/{shard} is of an earlier rollout",
            hint=command(run, stage, plan.iteration, shard),
        )


def sync_inputs(run: RunDir, plan: Plan) -> dict[str, str]:
    return {"train": committed(run, plan, "train", None).content}


def weights_content(run: RunDir, version: int) -> str:
    """Digest of a published version of the weights. Version 0 is the model the run began with."""
    if version == 0:
        return read_weights_record(run.weights_path(0)).digest
    return committed_at(run, "sync", version - 1).content


def policy_content(run: RunDir, version: int) -> str:
    """Digest of the trained parameters of a version; of the model the run began with, its weights."""
    if version == 0:
        return read_weights_record(run.weights_path(0)).digest
    return committed_at(run, "train", version - 1).content


def committed(run: RunDir, plan: Plan, stage: str, shard: int | None) -> Manifest:
    """The manifest of an input. MissingInputError, with the command that makes it, if there is none."""
    path = shard_manifest_path(run, plan, stage, shard)
    try:
        return _read(path)
    except SlimeStagesError as error:
        error.hint = command(run, stage, plan.iteration, shard)
        raise


def committed_at(run: RunDir, stage: str, iteration: int) -> Manifest:
    """The manifest of train or sync of an iteration."""
    path = run.manifest_path(stage, iteration)
    try:
        return _read(path)
    except MissingInputError as error:
        error.hint = command(run, stage, iteration, None)
        raise


def command(run: RunDir, stage: str, iteration: int, shard: int | None, *, force: bool = False) -> str:
    """What to type to make an output (again)."""
    words = ["slime-stages", program_of(stage), "--run", str(run.root), "--iter", str(iteration)]
    words += ["--shard", str(shard)] if shard is not None else []
    words += ["--as", name] if (name := name_of(stage)) is not None else []
    words += ["--force"] if force else []
    return " ".join(words)


@lru_cache(maxsize=4096)
def _manifest_path(run: RunDir, stage: str, iteration: int, shard: int | None, count: int, split: str) -> Path:
    """Asked for several times for each manifest; making a path takes longer than reading some."""
    return run.manifest_path(stage, iteration, shard, count, split)


def _read(path: Path) -> Manifest:
    kept = _kept.get()
    if kept is None:
        return read_manifest(path)
    if path not in kept:
        try:
            kept[path] = read_manifest(path)
        except SlimeStagesError as error:
            kept[path] = error
    found = kept[path]
    if isinstance(found, SlimeStagesError):
        raise found
    return found

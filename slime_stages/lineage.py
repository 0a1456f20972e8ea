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

from slime_stages.errors import MissingInputError, SlimeStagesError
from slime_stages.manifest import Manifest, read_manifest
from slime_stages.plan import Plan
from slime_stages.rundir import RunDir
from slime_stages.stage import StageCall, config_digest
from slime_stages.weights.record import read_weights_record

if TYPE_CHECKING:
    from slime_stages.config import Config
    from slime_stages.journal import Journal

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


def rollout_inputs(run: RunDir, plan: Plan) -> dict[str, str]:
    return {"plan": plan.digest, "weights": weights_content(run, plan.policy_version)}


def journal_of(run: RunDir, plan: Plan, config: Config, call: StageCall) -> Journal:
    """Where a rollout call keeps its finished groups; asked otherwise, none of them counts."""
    from slime_stages.journal import Journal

    shard = call.shard or 0
    return Journal(
        run.journal_path(call.iteration, shard, call.split),
        iteration=call.iteration,
        shard=shard,
        fingerprint=f"{plan.digest} {weights_content(run, plan.policy_version)} {config_digest(config, call)}",
    )


def reward_inputs(run: RunDir, plan: Plan, shard: int) -> dict[str, str]:
    return {"rollout": committed(run, plan, "rollout", shard).content}


def train_inputs(run: RunDir, plan: Plan) -> dict[str, str]:
    inputs = {"policy": policy_content(run, plan.start_version)}
    for shard in range(plan.shard_count):
        for stage in ("rollout", "reward"):
            inputs[f"{stage}/{shard:05d}"] = committed(run, plan, stage, shard).content
    return inputs


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
    words = ["slime-stages", stage, "--run", str(run.root), "--iter", str(iteration)]
    words += ["--shard", str(shard)] if shard is not None else []
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

"""Plans of iterations and of evaluations: made once, from the config in force, and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from slime_stages.config import Config
from slime_stages.config.eval_dataset import resolved_dataset
from slime_stages.errors import DataError, MissingInputError, SlimeStagesError, UsageError
from slime_stages.launch.prompt_tables import prompts_record
from slime_stages.launch.start_run import current_revision
from slime_stages.run.commit import replace_file
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.plan import Plan, freeze_plan, plan_shards
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config, read_run_plan, say
from slime_stages.weights.publish import published_versions


def ensure_plan(run: RunDir, iteration: int) -> Plan:
    """The plan of an iteration, made now if there is none, and made again if it was altered."""
    return _ensured(run, iteration, "train", _new_plan)


def ensure_eval_plan(run: RunDir, version: int, split: str, *, shards: int | None = None) -> Plan:
    """The plan of evaluating a version of the weights on a set; the same. UsageError if `shards` are asked for and it
    was made with another number of them."""
    plan = _ensured(run, version, split, partial(_new_eval_plan, shards=shards))
    prompts = plan.shards[-1].stop
    if shards is not None and plan.shard_count != min(shards, prompts):
        raise UsageError(
            f"the evaluation {split} of weights {version} is planned in {plan.shard_count} shards, not in {shards}",
            hint=f"leave --shards out, or rm -r {run.plan_path(version, split).parent}   to begin it anew",
        )
    return plan


def eval_shard_count(run: RunDir, config: Config, split: str) -> int:
    """Shards of an evaluation that is not planned yet."""
    shards = config.eval.eval_shards
    return shards if shards == 1 else min(shards, int(prompts_record(run, split)["rows"]))


def _ensured(run: RunDir, iteration: int, split: str, new: Callable[[RunDir, int, str], Plan]) -> Plan:
    path = run.plan_path(iteration, split)
    if not path.exists():
        return freeze_plan(new(run, iteration, split), path)
    try:
        return read_run_plan(run, iteration, split)
    except DataError as error:
        plan = new(run, iteration, split)
        known = {manifest.inputs.get("plan") for manifest in _rollouts(run, iteration, split)}
        if known and plan.digest not in known:
            raise
        say(f"{error}; it is made again")
        replace_file(path, plan.to_bytes())
        return plan


def _new_plan(run: RunDir, iteration: int, split: str) -> Plan:
    revision = _revision_of(run, iteration, split)
    config = read_config(run, revision)
    batch, version = config.rollout.rollout_batch_size, _policy_version(run, iteration, config)
    shards, prompts_digest = config.rollout.rollout_shards, prompts_record(run, split)["content"]
    step = 1 + config.rollout.staleness
    begins_anew = _begins_anew(run, iteration, (batch, shards, step, prompts_digest))
    is_in_turn = config.rollout.rollout_streaming or begins_anew
    carry_from = _carry_from(run, iteration, iteration if is_in_turn else version, begins=config.rollout.carries)
    return Plan(
        run_id=run.run_id(),
        iteration=iteration,
        config_revision=revision,
        policy_version=version,
        prompts_digest=prompts_digest,
        n_samples_per_prompt=config.rollout.n_samples_per_prompt,
        seed=config.data.rollout_seed,
        shuffle=config.data.rollout_shuffle,
        shards=plan_shards(iteration * batch, batch, shards),
        carry_from=carry_from,
        stream_step=None if carry_from is None else 1 if is_in_turn else step,
        data_source_from=iteration - 1 if iteration and config.plugins.data_source_path else None,
    )


def _new_eval_plan(run: RunDir, version: int, split: str, *, shards: int | None) -> Plan:
    revision = _revision_of(run, version, split)
    config = read_config(run, revision)
    record = prompts_record(run, split)
    known = sorted(run.stage_path("rollout", version, split).glob("shard-*-of-*.json"))
    count = int(known[0].stem.rpartition("-of-")[2]) if known else shards or config.eval.eval_shards
    return Plan(
        run_id=run.run_id(),
        iteration=version,
        split=split,
        config_revision=revision,
        policy_version=version,
        prompts_digest=record["content"],
        n_samples_per_prompt=resolved_dataset(config, split).n_samples_per_eval_prompt or 1,
        seed=config.data.rollout_seed,
        shuffle=False,
        shards=plan_shards(0, record["rows"], min(count, record["rows"])),
    )


def wanted_version(config: Config, iteration: int) -> int:
    """The weights that the config has an iteration generate with."""
    return max(0, iteration - config.rollout.staleness)


def needed_versions(run: RunDir, iteration: int) -> set[int]:
    """The weights that an iteration and later ones generate with, as far as they are out when the iteration begins: by
    their plans, without one by the config in force."""
    config = read_config(run, current_revision(run))
    versions = set()
    for number in range(iteration, iteration + _longest_staleness(run) + 1):
        try:
            versions.add(read_run_plan(run, number).policy_version)
        except SlimeStagesError:  # it is made when its turn comes
            versions.add(wanted_version(config, number))
    return versions


def evaluates(config: Config, version: int) -> bool:
    """Whether the weights of this version are due for evaluation by `eval_interval`."""
    interval = config.eval.eval_interval
    if interval is None or not config.eval.datasets:
        return False
    return not config.eval.skip_eval_before_train if version == 0 else version % interval == 0


def _policy_version(run: RunDir, iteration: int, config: Config) -> int:
    """The weights to generate with; for a plan that was lost, the ones that its rollouts were made with.

    Where retention has removed what the config wants, as it may have before `staleness` was raised, the oldest newer
    ones that are left.
    """
    for manifest in _rollouts(run, iteration, "train"):
        return manifest.policy_version
    wanted = wanted_version(config, iteration)
    published = published_versions(run.weights_path(0).parent)
    if wanted in published:
        return wanted
    return min((version for version in published if wanted < version <= iteration), default=wanted)


def _carry_from(run: RunDir, iteration: int, end: int, *, begins: bool) -> tuple[int, ...] | None:
    """The iterations before `end` whose hand-overs no plan before takes. Once one has handed over, all do: nothing that
    was left over is lost."""
    before = _carrying(run, iteration - 1)
    if before is None:
        return () if begins else None
    taken, known = 0, {iteration - 1: before}
    while before is not None and before.iteration > taken:
        taken = max(taken, before.taken_until)
        before = _carrying(run, before.iteration - 1)
        known |= {} if before is None else {before.iteration: before}
    return tuple(number for number in range(taken, end) if number in known or _carrying(run, number))


def _begins_anew(run: RunDir, iteration: int, shape: tuple[int, int, int, str]) -> bool:
    """Whether the streams of prompts of an iteration (how many, in how many shards, by what step, of which table) are
    others than those of the one before it. It must then wait for that one, in spite of a lag, to know which prompts it
    has asked; and so must those that follow, each for the one before it."""
    plan = _carrying(run, iteration - 1)
    if plan is None:
        return False
    batch = plan.shards[-1].stop - plan.shards[0].start
    return shape != (batch, plan.shard_count, plan.stream_step or 1, plan.prompts_digest)


def _carrying(run: RunDir, iteration: int) -> Plan | None:
    """The plan of an iteration that hands over; None if it does not, or was never planned."""
    try:
        plan = read_run_plan(run, iteration)
    except MissingInputError:
        return None
    return None if plan.carry_from is None else plan


def _longest_staleness(run: RunDir) -> int:
    """Of all configs that plans may have been made with."""
    found = [0]
    for revision in range(current_revision(run) + 1):
        with suppress(SlimeStagesError):
            found.append(read_config(run, revision).rollout.staleness)
    return max(found)


def _revision_of(run: RunDir, iteration: int, split: str) -> int:
    """The config in force; for a plan that was lost, the one that its rollouts were made with."""
    for manifest in _rollouts(run, iteration, split):
        return manifest.config_revision
    return current_revision(run)


def _rollouts(run: RunDir, iteration: int, split: str) -> Iterator[Manifest]:
    """The manifests of the rollouts that are committed, whole ones."""
    for path in sorted(run.stage_path("rollout", iteration, split).glob("shard-*.json")):
        with suppress(SlimeStagesError):
            yield read_manifest(path)

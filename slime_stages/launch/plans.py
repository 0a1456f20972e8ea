"""Plans of iterations and of evaluations: made once, from the config in force, and frozen."""

from __future__ import annotations

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.launch.start_run import current_revision, prompts_record
from slime_stages.manifest import read_manifest
from slime_stages.plan import Plan, freeze_plan, plan_shards
from slime_stages.rundir import RunDir
from slime_stages.stage import read_config, read_run_plan


def ensure_plan(run: RunDir, iteration: int) -> Plan:
    """The plan of an iteration, made now if there is none."""
    path = run.plan_path(iteration)
    if path.exists():
        return read_run_plan(run, iteration)
    revision = _revision_of(run, iteration, "train")
    config = read_config(run, revision)
    batch = config.rollout.rollout_batch_size
    plan = Plan(
        run_id=run.run_id(),
        iteration=iteration,
        config_revision=revision,
        policy_version=iteration,
        prompts_digest=prompts_record(run, "train")["content"],
        n_samples_per_prompt=config.rollout.n_samples_per_prompt,
        seed=config.data.rollout_seed,
        shuffle=config.data.rollout_shuffle,
        shards=plan_shards(iteration * batch, batch, config.rollout.rollout_shards),
    )
    return freeze_plan(plan, path)


def ensure_eval_plan(run: RunDir, version: int, split: str) -> Plan:
    """The plan of evaluating a version of the weights on a set, made now if there is none."""
    path = run.plan_path(version, split)
    if path.exists():
        return read_run_plan(run, version, split)
    revision = _revision_of(run, version, split)
    config = read_config(run, revision)
    record = prompts_record(run, split)
    plan = Plan(
        run_id=run.run_id(),
        iteration=version,
        split=split,
        config_revision=revision,
        policy_version=version,
        prompts_digest=record["content"],
        n_samples_per_prompt=config.eval.n_samples_per_eval_prompt,
        seed=config.data.rollout_seed,
        shuffle=False,
        shards=plan_shards(0, record["rows"], 1),
    )
    return freeze_plan(plan, path)


def evaluates(config: Config, version: int) -> bool:
    """Whether the weights of this version are due for evaluation by `eval_interval`."""
    interval = config.eval.eval_interval
    if interval is None or not config.eval.datasets:
        return False
    return not config.eval.skip_eval_before_train if version == 0 else version % interval == 0


def _revision_of(run: RunDir, iteration: int, split: str) -> int:
    """The config in force; for a plan that was lost, the one that its rollouts were made with."""
    for path in sorted(run.stage_path("rollout", iteration, split).glob("shard-*.json")):
        try:
            return read_manifest(path).config_revision
        except SlimeStagesError:
            continue
    return current_revision(run)

"""Where a sample came from and where it went: prompt, weights, shard, rewards, advantage, step, new weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slime_stages.data.schema import TRAIN
from slime_stages.data.shards import read_shard
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import shard_manifest_path
from slime_stages.named_rewards import chosen_stage, config_of, name_of, stage_of
from slime_stages.reading.lookup import Found, SampleRecord, read_records
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One station of a sample's way."""

    title: str
    text: str
    made: str = ""
    """Where the record of it lies, and when and where it was made."""


def links_of(run: RunDir, item: Found) -> list[Link]:
    """A sample's way, as far as it has gone."""
    [record] = read_records(run, [item])
    plan = item.plan
    links = [_prompt(plan, item, record), _weights(run, plan, record), _rollout(run, plan, item, record)]
    links += _rewards(run, plan, item, record)
    if plan.split == "train":
        links += _training(run, plan, record)
    return [*links, *(Link(title="note", text=note) for note in record.notes)]


def _prompt(plan: Plan, item: Found, record: SampleRecord) -> Link:
    row, shard = record.rollout, plan.shards[item.shard]
    text = f"{row['prompt_id'] or 'no prompt of the table'}, the run's prompt number {row['group_index']}"
    if row["index"] is not None and plan.n_samples_per_prompt > 1:
        text += f", sample {row['index'] % plan.n_samples_per_prompt} of {plan.n_samples_per_prompt}"
    order = f"seed {plan.seed}" + (", shuffled" if plan.shuffle else "")
    handed_over = (
        "" if shard.start <= (row["group_index"] or 0) < shard.stop else ", handed over by an earlier iteration"
    )
    return Link(
        title="prompt",
        text=text,
        made=f"plan of iteration {plan.iteration}: shard {item.shard} asks {shard.start} to {shard.stop - 1}, "
        f"{order}{handed_over}",
    )


def _weights(run: RunDir, plan: Plan, record: SampleRecord) -> Link:
    told = ", ".join(dict.fromkeys(record.rollout["weight_versions"])) or f"{plan.policy_version} (not told)"
    made = "the model that the run began with"
    if plan.policy_version:
        made = _made(run, run.manifest_path("sync", plan.policy_version - 1))
    return Link(title="weights", text=f"version {told}; the plan says {plan.policy_version}", made=made)


def _rollout(run: RunDir, plan: Plan, item: Found, record: SampleRecord) -> Link:
    row = record.rollout
    prompt_length = row["total_length"] - row["response_length"]
    seed = "" if row["sampling_seed"] is None else f", seed {row['sampling_seed']}"
    return Link(
        title="rollout",
        text=f"{row['status']}, {prompt_length} + {row['response_length']} tokens{seed}, row {item.row}",
        made=_made(run, shard_manifest_path(run, plan, "rollout", item.shard)),
    )


def _rewards(run: RunDir, plan: Plan, item: Found, record: SampleRecord) -> Iterator[Link]:
    own: tuple[None, dict[str, Any] | None] = (None, record.reward)
    for name, row in (own, *record.other_rewards.items()):
        stage = stage_of(name)
        if row is None:
            yield Link(title=stage, text="not scored yet")
            continue
        value = "none" if row["reward"] is None else f"{row['reward']:g}"
        config = config_of(run, read_config(run, plan.config_revision), stage).reward
        by = config.custom_rm_path or config.rm_type or "the prompt's own type"
        why = f": {row['reward_message']}" if row["reward_message"] else ""
        yield Link(
            title=stage if name is None else f"reward {name}",
            text=f"{value}, {row['reward_status']} by {by}{why}",
            made=_made(run, shard_manifest_path(run, plan, stage, item.shard)),
        )


def _training(run: RunDir, plan: Plan, record: SampleRecord) -> Iterator[Link]:
    row = record.train
    if row is None:
        yield Link(title="train", text="not trained on yet")
        return
    named = name_of(chosen_stage(run, plan.iteration))
    source = "" if named is None else f" (reward {named})"
    advantage = "none" if row["advantage"] is None else f"{row['advantage']:+.4f}"
    yield Link(title="advantage", text=f"{advantage}{source}; {_group(run, plan, row)}")
    fate = f"step {row['step']}" if row["used"] else f"not used: {row['drop_reason'] or 'no reason given'}"
    gap = "" if row["log_prob_gap"] is None else f", log-prob gap {row['log_prob_gap']:.6f}"
    yield Link(
        title="train",
        text=f"{fate}, {row['trained_tokens']} tokens{gap}; gave policy {plan.trained_version}",
        made=_made(run, run.manifest_path("train", plan.iteration)),
    )
    path = run.manifest_path("sync", plan.iteration)
    if path.exists():
        yield Link(title="sync", text=f"published as weights {plan.trained_version}", made=_made(run, path))


def _group(run: RunDir, plan: Plan, row: dict[str, Any]) -> str:
    """The rewards that the advantage was made from."""
    columns = ("group_index", "raw_reward")
    table = read_shard(run.train_samples_path(plan.iteration), TRAIN, columns).to_pylist()
    rewards = [each["raw_reward"] for each in table if each["group_index"] == row["group_index"]]
    given = [reward for reward in rewards if reward is not None]
    mean = f", mean {sum(given) / len(given):.4g}" if given else ""
    listed = " ".join("none" if reward is None else f"{reward:g}" for reward in rewards[:16])
    return f"group {row['group_index']}: {listed}{' …' if len(rewards) > 16 else ''}{mean}"


def _made(run: RunDir, path: Any) -> str:
    try:
        manifest: Manifest = read_manifest(path)
    except SlimeStagesError as error:
        return f"{path.relative_to(run.root)}: {error.message}"
    job = manifest.job.get("SLURM_JOB_ID")
    where = f"{manifest.host}" + (f", job {job}" if job else "")
    return f"{path.relative_to(run.root)}, {manifest.finished[:19]} on {where}, content {manifest.content[:12]}"

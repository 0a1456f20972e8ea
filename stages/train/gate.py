"""What the train stage refuses to train on, before and after it has seen the log-probs, each with a sentence.

Every refusal has a name, by which a person may have accepted it: see `slime_stages.run.acceptance`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from slime_stages.config import Config
from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.run.plan import Plan
from slime_stages.stage import say
from stages.train.algorithm.metrics import zero_std_counts
from stages.train.batch import IterationBatch
from stages.train.work import schedule_of


@dataclass(slots=True, kw_only=True)
class Gate:
    """Of one training."""

    plan: Plan
    config: Config = field(repr=False)
    accepted: frozenset[str] = frozenset()
    """Names of checks that only warn."""
    passed: list[str] = field(default_factory=list)
    """Those of them that would have refused."""

    def refuse(self, check: str, says: str, *, hint: str) -> None:
        """DataError, unless the check is accepted."""
        if check in self.accepted:
            say(f"warning: {says}; it is accepted")
            self.passed.append(check)
            return
        way = f"slime-stages train --iter {self.plan.iteration} --accept {check}   trains all the same"
        raise DataError(says, hint=f"{hint}\n      {way}")


def admit(data: IterationBatch, gate: Gate, model: Path) -> Config:
    """Refuse what should not or cannot be trained on; returns the config that fits what there is.

    `model` is a Hugging Face folder of the architecture.
    """
    check_samples(data, gate)
    check_lengths(data, gate, model)
    config = fitted(gate.config, data, gate.plan)
    check_micro_batches(data, config)
    return config


def check_samples(data: IterationBatch, gate: Gate) -> None:
    """Refuse samples that are not those of the plan, and too many that teach little."""
    _check_prompts(data, gate)
    _check_versions(data, gate)
    _check_truncated(data, gate)
    _check_rewards(data, gate)
    _check_zero_std(data, gate)


def check_lengths(data: IterationBatch, gate: Gate, model: Path) -> None:
    """Refuse samples that are longer than the model has positions."""
    positions = json.loads((model / "config.json").read_bytes()).get("max_position_embeddings")
    name, length = _longest(data)
    if positions is not None and length > positions:
        says = f"sample {name} has {length} tokens, and the model {positions} positions (max_position_embeddings)"
        gate.refuse("lengths", says, hint=f"--rollout-max-context-len {positions}")


def check_micro_batches(data: IterationBatch, config: Config) -> None:
    """Refuse samples that no micro-batches can be made of, before a model is loaded for them."""
    name, length = _longest(data)
    train = config.train
    if train.use_dynamic_batch_size and train.max_tokens_per_gpu is not None:
        room = train.max_tokens_per_gpu * train.context_parallel_size
        if length > room:
            cut = "" if train.context_parallel_size == 1 else f" x context_parallel_size = {room}"
            say(
                f"warning: sample {name} has {length} tokens, more than max_tokens_per_gpu = "
                f"{train.max_tokens_per_gpu}{cut}: it goes alone, and may not fit into memory"
            )
    if train.balance_by_flops:
        return  # what a sample costs is known with the model
    try:
        schedule_of(data.batch, config, dp_size=train.data_parallel_size)
    except SlimeStagesError as error:
        raise type(error)(f"{error.message}; the longest is sample {name} with {length} tokens", hint=error.hint) from (
            error
        )


def fitted(config: Config, data: IterationBatch, plan: Plan) -> Config:
    """The config for fewer rollouts than one step wants, as a quorum or a deadline may leave: they are the step."""
    count = len(set(data.batch.rollout_ids.tolist()))
    if plan.carry_from is None or not 0 < count < config.global_batch_size:
        return config
    say(f"warning: {count} rollouts make one step in place of global_batch_size = {config.global_batch_size}")
    return config.model_copy(update={"train": config.train.model_copy(update={"global_batch_size": count})})


def check_log_probs(probs_diff: float | None, gate: Gate) -> None:
    """Refuse if engine and trainer disagree on the tokens' probabilities; a line on stderr if they come near it."""
    limits, plan = gate.config.gate, gate.plan
    if probs_diff is None or probs_diff <= limits.warn_probs_diff:
        return
    says = f"engine and trainer give the sampled tokens probabilities that differ by {probs_diff:.4f} on average"
    if probs_diff <= limits.refuse_probs_diff:
        say(f"warning: {says}, above {limits.warn_probs_diff}")
        return
    gate.refuse(
        "probs_diff",
        f"{says}, above refuse_probs_diff {limits.refuse_probs_diff}; nothing was trained",
        hint=f"the shards of iteration {plan.iteration} were sampled from other weights, or another temperature; "
        f"slime-stages rollout --iter {plan.iteration} --shard 0 --force",
    )


def _check_prompts(data: IterationBatch, gate: Gate) -> None:
    """Which prompts an iteration keeps is not planned where some are dropped or handed over; each comes once."""
    plan = gate.plan
    hint = f"slime-stages rollout --iter {plan.iteration} --force"
    if plan.carry_from is not None:
        shards_of: dict[int, set[int]] = {}
        for group, shard in zip(data.table["group_index"].to_pylist(), data.table["shard"].to_pylist(), strict=True):
            shards_of.setdefault(group, set()).add(shard)
        if twice := sorted(group for group, shards in shards_of.items() if len(shards) > 1):
            shards = ", ".join(map(str, sorted(shards_of[twice[0]])))
            says = f"iteration {plan.iteration} holds the prompt at position {twice[0]} in the shards {shards}"
            gate.refuse("prompts", says, hint=hint)
        return
    wanted = set(range(plan.shards[0].start, plan.shards[-1].stop))
    found = set(data.table["group_index"].unique().to_pylist())
    if found - wanted:
        odd = ", ".join(map(str, sorted(found - wanted, key=str)[:5]))
        says = f"iteration {plan.iteration} holds samples of prompts that its plan does not name: {odd}"
        gate.refuse("prompts", says, hint=hint)


def _check_versions(data: IterationBatch, gate: Gate) -> None:
    """Engines of rollouts that stream may be given newer weights while they generate, up to those that training starts
    from; what was handed over may come from older ones."""
    plan = gate.plan
    versions = {version for row in data.table["weight_versions"].to_pylist() for version in row}
    earlier = range(plan.policy_version if plan.carry_from is not None else 0)
    later = range(plan.policy_version, plan.start_version + 1) if gate.config.rollout.rollout_streaming else ()
    odd = sorted(versions - {str(plan.policy_version)} - set(map(str, (*earlier, *later))))
    if odd:
        rows = [str(plan.policy_version) not in row for row in data.table["weight_versions"].to_pylist()]
        first = data.table["index"][int(np.argmax(rows))].as_py()
        says = f"samples were generated by weight version {', '.join(odd)}; the plan says {plan.policy_version}"
        gate.refuse(
            "versions",
            f"{says} (sample {first} first)",
            hint=f"slime-stages rollout --iter {plan.iteration} --force",
        )


def _check_truncated(data: IterationBatch, gate: Gate) -> None:
    limit, share = gate.config.gate.max_truncated_share, float(data.batch.truncated.mean())
    if share > limit:
        says = f"{share:.0%} of {data.sample_count} samples are truncated; max_truncated_share is {limit:.0%}"
        gate.refuse("truncated", says, hint="raise --rollout-max-response-len, or --max-truncated-share")


def _check_rewards(data: IterationBatch, gate: Gate) -> None:
    limit, count = gate.config.gate.max_null_reward_share, data.sample_count
    dropped = [reason for reason in data.drop_reasons if reason is not None]
    if len(dropped) > limit * count:
        reasons = ", ".join(f"{dropped.count(reason)} {reason}" for reason in sorted(set(dropped)))
        gate.refuse(
            "null_reward",
            f"{len(dropped)} of {count} samples cannot be trained on ({reasons}); max_null_reward_share is {limit:.0%}",
            hint=f"slime-stages show --iter {gate.plan.iteration} --status error",
        )


def _check_zero_std(data: IterationBatch, gate: Gate) -> None:
    """Groups whose rewards all agree have no advantage; where rewards are not centred, they may teach all the same."""
    algorithm, limit = gate.config.algorithm, gate.config.gate.max_zero_std_share
    scored = ~np.isnan(data.raw_rewards)
    if not scored.any() or not algorithm.rewards_normalization or gate.config.rollout.n_samples_per_prompt == 1:
        return
    groups = data.batch.group_indices[scored]
    count, total = sum(zero_std_counts(data.raw_rewards[scored], groups).values()), len(np.unique(groups))
    if count > limit * total:
        gate.refuse(
            "zero_std",
            f"the samples of {count} of {total} prompts all have the same reward; max_zero_std_share is {limit:.0%}",
            hint="choose prompts of another difficulty, or leave such groups out: --dynamic-sampling-filter-path",
        )


def _longest(data: IterationBatch) -> tuple[int, int]:
    """The `index` of the longest sample, and its tokens."""
    row = int(np.argmax(data.batch.total_lengths))
    return int(data.batch.sample_indices[row]), int(data.batch.total_lengths[row])

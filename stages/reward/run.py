"""Reward stage: read a committed rollout shard, score it in processes that can be killed, write the thin sidecar.

A sample without a reward has null and a status that says why; never 0 in its place. A signal ends the scoring where it
stands: no score is kept but with all of its shard, since scoring again gives the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slime_stages.config import Config
from slime_stages.content import content_digest
from slime_stages.drain import uninterrupted
from slime_stages.errors import SlimeStagesError, UsageError
from slime_stages.lineage import command, committed, reward_inputs, shard_manifest_path
from slime_stages.manifest import check_data
from slime_stages.payload import dump_json
from slime_stages.progress import Progress
from slime_stages.rewards.pool import RewardOutcome, RewardPool, RewardTask
from slime_stages.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.sample_table import read_samples
from slime_stages.schema import REWARD
from slime_stages.shards import ShardWriter
from slime_stages.stage import Stage, StageCall, open_stage, read_config, read_run_plan

TASKS_PER_WORKER = 1000


@dataclass(slots=True)
class Score:
    """The outcome of one sample."""

    reward: float | dict[str, Any] | None
    status: str
    message: str | None = None
    seconds: float = 0.0


def run(call: StageCall) -> Path:
    """Score shard `call.shard` of iteration `call.iteration`; returns the path of its manifest."""
    run_dir = RunDir(call.run)
    plan = read_run_plan(run_dir, call.iteration, call.split)
    config = read_config(run_dir, plan.config_revision)
    shard = call.shard or 0
    path = shard_manifest_path(run_dir, plan, "reward", shard)
    stage = open_stage(call, reward_inputs(run_dir, plan, shard), plan=plan, config=config, path=path)
    if stage is None:
        return path

    samples = _read_rollout(stage, shard)
    with stage.timed("score"):
        scores = score(samples, config, title=call.title, evaluation=call.split != "train")
    with uninterrupted(last=True):
        return _write(stage, samples, scores)


def score(samples: Sequence[Sample], config: Config, *, title: str, evaluation: bool = False) -> list[Score]:
    """A score for each sample, in order. Rewards that the generate function filled in are passed through."""
    scores = [_score_without_asking(sample) for sample in samples]
    tasks = list(_tasks(samples, scores, group_rm=config.reward.group_rm and not evaluation))
    if not tasks:
        return [score for score in scores if score is not None]
    settings = vars(config.as_args())
    with (
        Progress(title, total=len(samples), unit="samples") as progress,
        RewardPool(
            settings,
            workers=min(config.reward.reward_workers or os.cpu_count() or 1, len(tasks)),
            timeout_seconds=config.reward.reward_timeout,
            memory_bytes=int(config.reward.reward_memory_gb * (1 << 30)),
            tasks_per_worker=TASKS_PER_WORKER,
        ) as pool,
    ):
        progress.update(sum(score is not None for score in scores))
        total, count = 0.0, 0
        for outcome in pool.score(tasks):
            rows = [int(row) for row in outcome.key.split(",")]
            for row, reward in zip(rows, outcome.rewards, strict=True):
                scores[row] = _checked(reward, outcome, config, evaluation=evaluation)
                if (value := number(reward, config, evaluation=evaluation)) is not None:
                    total, count = total + value, count + 1
            progress.advance(len(rows), mean_reward=f"{total / count:.3f}" if count else "-")
    return [score for score in scores if score is not None]


def number(reward: Any, config: Config, *, evaluation: bool = False) -> float | None:
    """The number in a reward; None for no reward, or for a dict without the key asked for."""
    if isinstance(reward, dict):
        key = config.reward.reward_key
        if evaluation and config.reward.eval_reward_key:
            key = config.reward.eval_reward_key
        reward = reward.get(key)
    return None if reward is None else float(reward)


def _read_rollout(stage: Stage, shard: int) -> list[Sample]:
    manifest = committed(stage.run, stage.plan, "rollout", shard)
    rollout_path = shard_manifest_path(stage.run, stage.plan, "rollout", shard)
    try:
        return read_samples(check_data(rollout_path, manifest))
    except SlimeStagesError as error:
        error.hint = command(stage.run, "rollout", stage.plan.iteration, shard)
        raise


def _score_without_asking(sample: Sample) -> Score | None:
    if sample.reward is not None:
        return Score(sample.reward, "given")
    if Status(sample.status) in (Status.ABORTED, Status.FAILED, Status.PENDING):
        return Score(None, "skipped", f"the sample is {Status(sample.status).value}")
    return None


def _tasks(samples: Sequence[Sample], scores: Sequence[Score | None], *, group_rm: bool) -> Iterator[RewardTask]:
    """One task for each plain sample, for all siblings of a fan-out together, or for a whole group."""
    bundles: dict[Any, list[int]] = {}
    for row, sample in enumerate(samples):
        if scores[row] is not None:
            continue
        alone = ("row", row)
        together = ("group", sample.group_index) if group_rm else ("rollout", sample.rollout_id)
        bundles.setdefault(alone if together[1] is None else together, []).append(row)
    for (kind, _), rows in bundles.items():
        yield RewardTask(
            key=",".join(map(str, rows)), samples=[samples[row].to_dict() for row in rows], is_list=kind != "row"
        )


def _checked(reward: Any, outcome: RewardOutcome, config: Config, *, evaluation: bool) -> Score:
    if isinstance(reward, dict) and number(reward, config, evaluation=evaluation) is None:
        keys = ", ".join(reward)
        raise UsageError(
            f"the reward is a dict with {keys}; reward_key is {config.reward.reward_key!r}",
            hint=f"add --reward-key {next(iter(reward), 'KEY')}",
        )
    return Score(reward, outcome.status.value, outcome.message, outcome.seconds)


def _write(stage: Stage, samples: Sequence[Sample], scores: Sequence[Score]) -> Path:
    shard, plan, evaluation = stage.call.shard or 0, stage.plan, stage.call.split != "train"
    name = stage.run.shard_path("reward", plan.iteration, shard, plan.shard_count, stage.call.split).name
    numbers = [number(score.reward, stage.config, evaluation=evaluation) for score in scores]
    given = [value for value in numbers if value is not None]
    with stage.output(name) as temporary:
        with ShardWriter(temporary, REWARD, {"run_id": plan.run_id, **stage.inputs}) as writer:
            writer.write(_columns(stage, samples, scores, numbers))
        return stage.commit(
            data=temporary,
            name=name,
            rows=len(samples),
            content=content_digest(temporary, REWARD),
            counts=dict(Counter(score.status for score in scores)),
            metrics={"rollout/raw_reward": float(np.mean(given)) if given else None},
        )


def _columns(
    stage: Stage, samples: Sequence[Sample], scores: Sequence[Score], numbers: Sequence[float | None]
) -> dict[str, Any]:
    count = len(samples)
    parts = [score.reward if isinstance(score.reward, dict) else None for score in scores]
    return {
        "iteration": np.full(count, stage.plan.iteration, np.int32),
        "shard": np.full(count, stage.call.shard or 0, np.int32),
        "split": [stage.call.split] * count,
        "row": np.arange(count, dtype=np.int32),
        "index": [sample.index for sample in samples],
        "group_index": [sample.group_index for sample in samples],
        "reward": numbers,
        "reward_parts": [None if part is None else dump_json(part, what="a reward") for part in parts],
        "reward_status": [score.status for score in scores],
        "reward_message": [score.message for score in scores],
        "reward_seconds": [score.seconds for score in scores],
    }

"""Reward stage: read a committed rollout shard, score it in processes that can be killed, write the thin sidecar.

A sample without a reward has null and a status that says why; never 0 in its place. A signal ends the scoring where it
stands: no score is kept but with all of its shard, since scoring again gives the same. A call of `reward-NAME` scores
by the settings of that name, beside the run's own rewards, which it leaves as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slime_stages.data.content import content_digest
from slime_stages.data.payload import dump_json
from slime_stages.data.sample_table import samples_of
from slime_stages.data.schema import REWARD, ROLLOUT
from slime_stages.data.shards import ShardWriter, read_batches, read_shard
from slime_stages.drain import uninterrupted
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import command, committed, reward_inputs, shard_manifest_path
from slime_stages.metrics import report_scored
from slime_stages.named_rewards import OWN, config_of
from slime_stages.rewards.scoring import Identity, Score, number, score
from slime_stages.run.manifest import check_data, data_path
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.stage import Stage, StageCall, open_stage, read_config, read_run_plan

TOKEN_COLUMNS = (
    "tokens",
    "loss_mask",
    "rollout_log_probs",
    "teacher_log_probs",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "rollout_routed_experts",
)
"""A number or more for each token of a sample."""
ROWS_AT_ONCE = 32
"""Samples whose tokens are lists at a time, which take ten times the memory of a column."""


def run(call: StageCall) -> Path:
    """Score shard `call.shard` of iteration `call.iteration`; returns the path of its manifest."""
    run_dir = RunDir(call.run)
    plan = read_run_plan(run_dir, call.iteration, call.split)
    config = config_of(run_dir, read_config(run_dir, plan.config_revision), call.stage)
    shard = call.shard or 0
    path = shard_manifest_path(run_dir, plan, call.stage, shard)
    stage = open_stage(call, reward_inputs(run_dir, plan, shard), plan=plan, config=config, path=path)
    if stage is None:
        return path

    identities = _identities(stage, shard)
    with stage.timed("score"):
        scores = score(
            _samples(stage, shard),
            config,
            title=call.title,
            evaluation=call.split != "train",
            identities=identities,
        )
    with uninterrupted(last=True):
        manifest = _write(stage, identities, scores)
        if call.stage == OWN:
            report_scored(stage)
    return manifest


def _identities(stage: Stage, shard: int) -> list[Identity]:
    """Of the rollout shard's samples, after a look at all its bytes."""
    manifest = committed(stage.run, stage.plan, "rollout", shard)
    with _telling_how_to_mend(stage, shard):
        path = check_data(shard_manifest_path(stage.run, stage.plan, "rollout", shard), manifest)
        columns = read_shard(path, ROLLOUT, Identity.__slots__)
    return [Identity(*row) for row in zip(*(columns[name].to_pylist() for name in Identity.__slots__), strict=True)]


def _samples(stage: Stage, shard: int) -> Iterator[Sample]:
    """One row group after the other, so that memory does not grow with the shard."""
    manifest = committed(stage.run, stage.plan, "rollout", shard)
    path = data_path(shard_manifest_path(stage.run, stage.plan, "rollout", shard), manifest)
    with _telling_how_to_mend(stage, shard):
        for table in _tables(path, with_tokens=_calls_functions(stage, path)):
            for start in range(0, len(table), ROWS_AT_ONCE):
                for sample in samples_of(table.slice(start, ROWS_AT_ONCE)):
                    if stage.call.stage != OWN:
                        sample.reward = None  # the generate function's is the run's own
                    yield sample


def _calls_functions(stage: Stage, path: Path) -> bool:
    """Whether any sample is scored by a function of the user's, which may look at all of it."""
    if stage.config.as_args().custom_rm_path:
        return True
    named = read_shard(path, ROLLOUT, ("custom_rm_path",))["custom_rm_path"]
    return bool(named.null_count < len(named))


def _tables(path: Path, *, with_tokens: bool) -> Iterator[pa.Table]:
    """Row groups of a rollout shard. Built-in types see texts only; tokens as lists would take longer than they do."""
    if with_tokens:
        yield from read_batches(path, ROLLOUT)
        return
    for table in read_batches(path, ROLLOUT, [name for name in ROLLOUT.names if name not in TOKEN_COLUMNS]):
        for name in TOKEN_COLUMNS:
            table = table.append_column(name, pa.nulls(len(table), ROLLOUT.arrow.field(name).type))
        yield table


@contextmanager
def _telling_how_to_mend(stage: Stage, shard: int) -> Iterator[None]:
    try:
        yield
    except SlimeStagesError as error:
        error.hint = command(stage.run, "rollout", stage.plan.iteration, shard)
        raise


def _write(stage: Stage, identities: Sequence[Identity], scores: Sequence[Score]) -> Path:
    shard, plan, evaluation = stage.call.shard or 0, stage.plan, stage.call.split != "train"
    name = stage.run.shard_path(stage.call.stage, plan.iteration, shard, plan.shard_count, stage.call.split).name
    numbers = [number(score.reward, stage.config, evaluation=evaluation) for score in scores]
    given = [value for value in numbers if value is not None]
    with stage.output(name) as temporary:
        with ShardWriter(temporary, REWARD, {"run_id": plan.run_id, **stage.inputs}) as writer:
            writer.write(_columns(stage, identities, scores, numbers))
        return stage.commit(
            data=temporary,
            name=name,
            rows=len(scores),
            content=content_digest(temporary, REWARD),
            counts=dict(Counter(score.status for score in scores)),
            metrics={"rollout/raw_reward": float(np.mean(given)) if given else None},
        )


def _columns(
    stage: Stage, identities: Sequence[Identity], scores: Sequence[Score], numbers: Sequence[float | None]
) -> dict[str, Any]:
    count = len(scores)
    parts = [score.reward if isinstance(score.reward, dict) else None for score in scores]
    return {
        "iteration": np.full(count, stage.plan.iteration, np.int32),
        "shard": np.full(count, stage.call.shard or 0, np.int32),
        "split": [stage.call.split] * count,
        "row": np.arange(count, dtype=np.int32),
        "index": [each.index for each in identities],
        "group_index": [each.group_index for each in identities],
        "reward": numbers,
        "reward_parts": [None if part is None else dump_json(part, what="a reward") for part in parts],
        "reward_status": [score.status for score in scores],
        "reward_message": [score.message for score in scores],
        "reward_seconds": [score.seconds for score in scores],
        "trace": [score.trace for score in scores],
    }

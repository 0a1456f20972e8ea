"""A rank reads a few columns of all samples, and of its own the rest: row group by row group, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as distributed

from slime_stages.data import shards
from slime_stages.data.schema import LOG_PROBS, ROLLOUT, TOKENS
from slime_stages.errors import DataError
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from stages.train.batch import IterationBatch, read_iteration
from stages.train.work import schedule_of
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder
from tests.slime_stages.config.settings import resolved

Read = tuple[str, int, tuple[str, ...]]
SHARDS = ("shard-00000-of-00002.parquet", "shard-00001-of-00002.parquet")
CONFIG = resolved(rollout_batch_size=4, n_samples_per_prompt=2, micro_batch_size=2, actor_num_gpus_per_node=2).config
"""Two ranks, which get micro-batches of two samples in turn."""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    """Shard 0 has samples 0 to 3, shard 1 samples 4 to 7, two in each row group. Sample 2 has no mask for its 3 tokens,
    the others have one with two ones."""
    monkeypatch.setattr(shards, "ROWS_PER_GROUP", 2)
    made = SmallRun(run=RunDir(tmp_path / "run"), config=CONFIG).start(make_model_folder(tmp_path / "model"))
    plan = made.plan(0)
    for shard in (0, 1):
        samples = made_up_samples(plan, shard)
        if shard == 0:
            samples[2].loss_mask = None
        made.rollout(plan, shard, samples=samples)
        made.reward(plan, shard)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Of rollout shards: file, row group and columns."""
    found: list[Read] = []
    read = shards._read_group

    def noting(path: Path, file: Any, group: int, schema: Any, columns: Any) -> Any:
        if schema is ROLLOUT:
            found.append((path.name, group, tuple(columns or schema.names)))
        return read(path, file, group, schema, columns)

    monkeypatch.setattr(shards, "_read_group", noting)
    return found


def iteration(small: SmallRun, **flags: Any) -> tuple[Plan, IterationBatch]:
    plan = small.plan(0)
    config = CONFIG.model_copy(update={"algorithm": CONFIG.algorithm.model_copy(update=flags)})
    return plan, read_iteration(small.run, plan, config)


def test_of_all_samples_no_text_no_tokens_and_no_log_probs_are_read(small: SmallRun, reads: list[Read]) -> None:
    _, data = iteration(small)

    assert [(file, group) for file, group, _ in reads] == [(file, group) for file in SHARDS for group in (0, 1)]
    read = {name for _, _, columns in reads for name in columns}
    heavy = {column.name for column in ROLLOUT.columns if column.type in (TOKENS, LOG_PROBS) or column.is_json}
    assert not read & (heavy | {"prompt", "response", "payloads"})
    assert data.batch.loss_mask_sums.tolist() == [2, 2, 3, 2, 2, 2, 2, 2]
    assert not data.batch.tokens


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_the_row_groups_with_its_own_samples_alone(small: SmallRun, reads: list[Read], rank: int) -> None:
    _, data = iteration(small)
    reads.clear()

    mine = schedule_of(data.batch, CONFIG, dp_size=2).partitions[rank]
    batch = data.with_rows(mine)

    assert mine == [[0, 1, 4, 5], [2, 3, 6, 7]][rank]
    assert [(file, group) for file, group, _ in reads] == [(SHARDS[0], rank), (SHARDS[1], rank)]
    assert {columns for *_, columns in reads} == {
        ("total_length", "response_length", "tokens", "loss_mask", "rollout_log_probs")
    }
    assert sorted(batch.tokens) == sorted(batch.loss_masks) == sorted(batch.rollout_log_probs or ()) == mine


def test_the_ranks_together_have_what_a_function_that_is_shown_all_samples_sees(small: SmallRun) -> None:
    _, data = iteration(small)
    _, shown = iteration(small, rollout_data_postprocess_path="tests.stages.train.hooks_under_test.post_process")

    for positions in ([5, 0], [3]):
        batch = data.with_rows(positions)
        for name in ("tokens", "loss_masks", "rollout_log_probs"):
            rows, expected = getattr(batch, name), getattr(shown.batch, name)
            assert {p: row.tolist() for p, row in rows.items()} == {p: expected[p].tolist() for p in positions}
    assert len(shown.batch.tokens) == 8


def test_each_shard_is_read_whole_for_its_digest_by_one_of_the_ranks(
    small: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small.run.shard_path("reward", 0, 1, 2)
    path.write_bytes(path.read_bytes().replace(b"parquet-cpp", b"parquet-abc"))  # who wrote it: no value
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)

    monkeypatch.setattr(distributed, "get_rank", lambda: 0)
    iteration(small)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    with pytest.raises(DataError, match=f"{path} has digest"):
        iteration(small)


def test_rows_that_a_shard_does_not_hold_are_refused(small: SmallRun) -> None:
    path = small.run.shard_path("rollout", 0, 0, 2)

    with pytest.raises(DataError, match="holds 4 rows, and no row 4"):
        list(shards.read_rows(path, ROLLOUT, np.array([1, 4])))


def test_an_iteration_without_a_sample_is_refused_with_the_command_that_makes_some(small: SmallRun) -> None:
    plan = small.plan(0)
    for shard in (0, 1):
        small.rollout(plan, shard, samples=[], force=True)

    with pytest.raises(DataError, match="no rollout shard of iteration 0 holds a sample") as refused:
        iteration(small)
    assert "slime-stages rollout" in refused.value.hint

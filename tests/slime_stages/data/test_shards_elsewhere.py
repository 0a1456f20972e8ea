"""Shards open in other tools without us, several at once."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from slime_stages.data.sample_table import write_samples
from slime_stages.sample import Sample, Status


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Two shards of two samples; in the first one all optional columns are null."""
    bare = [Sample(index=i, group_index=0, tokens=[1, 2], response_length=1) for i in range(2)]
    full = [
        Sample(
            index=2 + i,
            group_index=1,
            tokens=[3, 4, 5],
            response_length=2,
            loss_mask=[1, i],
            rollout_log_probs=[-0.5, -0.25],
            teacher_log_probs=[-1.0, -2.0],
            rollout_routed_experts=np.zeros((2, 1, 1), np.int32),
            reward=float(i),
            session_id="s",
            label={"answer": i},
            train_metadata={"a": 1},
            multimodal_train_inputs={"pixels": np.zeros(2)},
            generate_seconds=1.0,
            status=Status.COMPLETED,
        )
        for i in range(2)
    ]
    folder = tmp_path / "rollout"
    folder.mkdir()
    for shard, samples in enumerate([bare, full]):
        write_samples(folder / f"shard-{shard:05d}-of-00002.parquet", samples, iteration=0, shard=shard)
    (folder / ".tmp-host-1-0000000000000000-shard-00000-of-00002.parquet.part").write_bytes(b"half")
    return folder


def test_duckdb_reads_all_shards_at_once(run_folder: Path) -> None:
    rows = duckdb.execute(
        "SELECT index, status, reward, len(tokens), list_sum(rollout_log_probs), label->>'answer' "
        f"FROM read_parquet('{run_folder}/*.parquet') ORDER BY index"
    ).fetchall()

    assert rows == [
        (0, "pending", None, 2, None, None),
        (1, "pending", None, 2, None, None),
        (2, "completed", 0.0, 3, -0.75, "0"),
        (3, "completed", 1.0, 3, -0.75, "1"),
    ]


def test_pandas_reads_a_shard(run_folder: Path) -> None:
    frame = pd.read_parquet(run_folder / "shard-00001-of-00002.parquet")

    assert frame["index"].tolist() == [2, 3]
    assert [row.tolist() for row in frame["tokens"]] == [[3, 4, 5], [3, 4, 5]]
    assert frame.groupby("group_index")["reward"].mean().tolist() == [0.5]
    assert frame["status"].tolist() == ["completed", "completed"]


def test_datasets_reads_all_shards_at_once_though_a_column_is_null_throughout_one(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    files = [str(path) for path in sorted(run_folder.glob("*.parquet"))]
    rows = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))

    assert rows["index"][:] == [0, 1, 2, 3]
    assert rows["rollout_log_probs"][:] == [None, None, [-0.5, -0.25], [-0.5, -0.25]]
    assert rows["status"][:] == ["pending", "pending", "completed", "completed"]

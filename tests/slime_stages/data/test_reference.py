"""The reference page of columns is the one that the schemas make now."""

from __future__ import annotations

from pathlib import Path

import duckdb

from slime_stages.data.reference import FILES, columns_page
from slime_stages.data.sample_table import write_samples
from slime_stages.data.schema import REWARD, SCHEMAS
from slime_stages.data.shards import ShardWriter
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample

PAGE = Path(__file__).parents[3] / "docs" / "columns.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == columns_page(), "python -m slime_stages.data.reference > docs/columns.md"


def test_every_column_of_every_schema_has_its_line_and_a_meaning() -> None:
    page = columns_page()

    for schema in SCHEMAS:
        assert f"## {schema.kind}\n" in page
        assert FILES[schema.kind]
        for column in schema.columns:
            assert f"| `{column.name}` |" in page
            assert column.meaning


def test_a_line_says_type_null_and_length() -> None:
    lines = columns_page().splitlines()
    [mask] = [line for line in lines if line.startswith("| `loss_mask` |")]

    assert mask.startswith("| `loss_mask` | list<uint8> | null | [R] 1 on tokens")
    assert mask.endswith("; length `response_length` |")
    assert "| `status` | enum |  | pending, completed, truncated, aborted or failed |" in lines
    assert "| `label` | json | null | ground truth for the reward |" in lines


def test_the_query_on_the_page_runs(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for stage in ("rollout", "reward"):
        run.stage_path(stage, 12).mkdir(parents=True)
    samples = [Sample(tokens=[1, 2, 3], response_length=length) for length in (1, 2)]
    write_samples(run.shard_path("rollout", 12, 0, 1), samples, iteration=12, shard=0)
    rewards = {name: [None, None] for name in REWARD.names} | {
        "iteration": [12, 12],
        "shard": [0, 0],
        "split": ["train", "train"],
        "row": [0, 1],
        "reward": [1.0, 0.0],
        "reward_status": ["scored", "scored"],
        "reward_seconds": [0.0, 0.0],
    }
    with ShardWriter(run.shard_path("reward", 12, 0, 1), REWARD) as writer:
        writer.write(rewards)
    query = columns_page().split("```")[1].removeprefix("sql")

    assert duckdb.execute(query.replace("RUN", str(tmp_path))).fetchall() == [(12, 0.5, 1.5)]

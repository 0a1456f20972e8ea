from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slime_stages.cli.main import main
from slime_stages.named_rewards import freeze_settings
from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Iteration 0 is complete, scored again as `other` and evaluated; iteration 1 has shard 0. Do not write to it."""
    folder = tmp_path_factory.mktemp("query")
    small = SmallRun(run=RunDir(folder / "run")).start(make_model_folder(folder / "model"))
    plan = small.complete(0)
    small.evaluate(0, "heldout")
    small.rollout(small.plan(1), 0)
    freeze_settings(small.run, "other", {"rm_type": "f1"}, force=False)
    for shard in range(2):
        small.reward(plan, shard, stage_name="reward-other")
    return small


def answer(small: SmallRun, capsys: pytest.CaptureFixture[str], sql: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["query", sql, "--run", str(small.run.root), "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_views_hold_all_that_is_committed(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["query", "--run", str(run_of_two.run.root)]) == 0

    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]

    assert rows == [
        ["view", "rows"],
        ["samples", "12"],
        ["rewards", "18"],
        ["train", "8"],
        ["eval", "2"],
        ["prompts", "0"],
        ["manifests", "11"],
    ]


def test_samples_and_their_rewards_and_advantages_are_joined_by_their_place(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = """
        select sample.index, name, scored.reward, advantage from samples sample
        join rewards scored using (iteration, split, shard, row)
        left join train using (iteration, shard, row)
        where response = 'answer 2.1' order by name
    """

    assert answer(run_of_two, capsys, sql) == [
        {"index": 5, "name": "other", "reward": 1.0, "advantage": 0.5},
        {"index": 5, "name": "own", "reward": 1.0, "advantage": 0.5},
    ]


def test_evaluations_have_their_rewards_beside_them(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(run_of_two, capsys, "select split, row, reward, reward_status from eval order by row")

    assert found == [
        {"split": "heldout", "row": 0, "reward": 0.0, "reward_status": "scored"},
        {"split": "heldout", "row": 1, "reward": 1.0, "reward_status": "scored"},
    ]


def test_manifests_tell_counts_and_metrics_by_name(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select counts['truncated'] as cut, path from manifests where kind = 'rollout' and iteration = 1"

    assert answer(run_of_two, capsys, sql) == [
        {"cut": 1, "path": "iterations/000001/rollout/shard-00000-of-00002.json"}
    ]


def test_rewards_and_training_of_an_earlier_rollout_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))
    plan = small.complete(0)
    small.rollout(plan, 1, samples=made_up_samples(plan, 1, word="other"), force=True)

    sql = "select (select count(*) from rewards) as rewards, (select count(*) from train) as trained"

    assert answer(small, capsys, sql) == [{"rewards": 4, "trained": 0}]
    assert answer(small, capsys, "select count(*) as n from samples where response like 'other%'") == [{"n": 4}]


def test_rows_are_printed_as_a_table_as_csv_or_written_to_a_parquet_file(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["query", "select row, response from eval order by row", "--run", str(run_of_two.run.root)]

    assert main(words) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1] == ["0", "answer", "0.0"]
    assert main([*words, "--format", "csv"]) == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[:2] == [["row", "response"], ["0", "answer 0.0"]]
    assert main([*words, "--format", "parquet", "--output", str(tmp_path / "rows.parquet")]) == 0
    assert pq.read_table(tmp_path / "rows.parquet")["response"].to_pylist() == ["answer 0.0", "answer 1.0"]


def test_a_statement_that_is_wrong_is_a_usage_error_in_duckdbs_words(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "select * from sample", "--run", str(run_of_two.run.root)]) == 2

    said = capsys.readouterr().err
    assert "Table with name sample does not exist" in said
    assert "the views are samples, rewards, train, eval, prompts, manifests" in said


def test_a_file_that_is_damaged_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))
    small.rollout(small.plan(0), 0)
    path = small.run.shard_path("rollout", 0, 0, 2)
    path.write_bytes(b"nothing" * 100)

    assert main(["query", "select count(*) from samples", "--run", str(small.run.root)]) == 65

    assert path.name in capsys.readouterr().err


def test_the_statements_of_the_page_can_be_asked(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "query.md").read_text()
    statements = [sql for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) for sql in block.split(";")[:-1]]
    statements += [sql for sql in re.findall(r'slime-stages query "(.*?)"', page) if "…" not in sql]

    assert len(statements) == 4
    for sql in statements:
        answer(run_of_two, capsys, sql)


def test_explain_follows_a_sample_from_its_prompt_to_new_weights(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["explain", "5", "--run", str(run_of_two.run.root)]) == 0

    lines = capsys.readouterr().out.splitlines()

    assert [line for line in lines if not line.startswith(" ")] == [
        "sample 0/1/1",
        "prompt        prompt-2, the run's prompt number 2, sample 1 of 2",
        "weights       version 0; the plan says 0",
        "rollout       completed, 3 + 3 tokens, seed 7, row 1",
        "reward        1, scored by the prompt's own type",
        "reward other  1, scored by f1",
        "advantage     +0.5000; group 2: 0 1, mean 0.5",
        "train         step 0, 2 tokens, log-prob gap 0.001000; gave policy 1",
        "sync          published as weights 1",
    ]
    assert lines[2].strip() == "plan of iteration 0: shard 1 asks 2 to 3, seed 42"
    assert lines[4].strip() == "the model that the run began with"
    assert lines[6].strip().startswith("iterations/000000/rollout/shard-00001-of-00002.json, 20")


def test_explain_tells_how_far_a_sample_has_come(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", "1/0/0", "--run", str(run_of_two.run.root)]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]

    assert lines[-2:] == ["reward   not scored yet", "train    not trained on yet"]

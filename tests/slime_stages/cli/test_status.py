from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from typing import Any

import pytest

from slime_stages.cli.main import main
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples


def status(small: SmallRun, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["status", "--run", str(small.run.root), *words]) == 0
    return capsys.readouterr().out


def status_json(small: SmallRun, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(status(small, capsys, "--json", *words))


def cells(text: str, first: str) -> list[str]:
    """The cells of the table row that begins with this word."""
    line = next(line for line in text.splitlines() if line.split()[:1] == [first])
    return re.split(r"\s{2,}", line.strip())


def test_a_complete_iteration_is_committed_and_the_next_one_is_to_be_run(
    small: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    small.complete(0)

    text = status(small, capsys)

    header = cells(text, "iteration")
    row = dict(zip(header, cells(text, "0"), strict=True))
    assert [row[stage] for stage in ("rollout", "reward", "train", "sync")] == [
        "2/2 committed",
        "2/2 committed",
        "committed",
        "committed",
    ]
    assert (row["samples"], row["tokens"], row["mean reward"], row["truncated"]) == ("8", "48", "0.500", "25.0%")
    assert row["|Δp|"] == "0.000500"
    assert float(row["train s"]) < 60
    assert text.endswith(f"\nnext: slime-stages iter --run {small.run.root} --n 1\n")
    assert "\x1b" not in text


def test_a_run_without_iterations_says_so(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    text = status(small, capsys)

    root = small.run.root
    assert text == f"{root}: no iterations\n\nnext: slime-stages iter --run {root} --n 1\n"


def test_one_missing_shard_is_the_next_command(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small.plan(0)
    small.rollout(plan, 0)
    small.rollout(plan, 1)
    small.reward(plan, 0)

    text = status(small, capsys)

    assert cells(text, "0")[1:5] == ["2/2 committed", "1/2, 1 missing", "missing", "missing"]
    assert f"next: slime-stages reward --run {small.run.root} --iter 0 --shard 1\n" in text


def test_several_missing_shards_are_one_command(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.plan(0)

    text = status(small, capsys)

    assert cells(text, "0")[1:5] == ["missing"] * 4
    assert f"next: slime-stages rollout --run {small.run.root} --iter 0\n" in text


def test_a_rollout_made_again_leaves_what_was_made_from_it_stale(
    small: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small.complete(0)
    small.rollout(plan, 1, samples=made_up_samples(plan, 1, word="other"), force=True)

    text = status(small, capsys)

    assert cells(text, "0")[1:5] == ["2/2 committed", "1/2, 1 stale", "stale", "committed"]
    assert "reward 0/1 is stale: rollout changed since\n" in text
    assert "train 0 is stale: rollout/00001 changed since\n" in text
    assert f"next: slime-stages reward --run {small.run.root} --iter 0 --shard 1\n" in text


def test_a_manifest_whose_data_is_gone_is_corrupt(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.complete(0)
    lost = small.run.shard_path("reward", 0, 0, 2)
    lost.unlink()

    text = status(small, capsys)

    assert cells(text, "0")[2] == "1/2, 1 corrupt"
    assert f"reward 0/0 is corrupt: {lost} is gone, but its manifest is there\n" in text
    assert f"next: slime-stages reward --run {small.run.root} --iter 0 --shard 0\n" in text


def test_a_broken_plan_is_to_be_removed(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.complete(0)
    path = small.run.plan_path(0)
    path.write_text("{")

    text = status(small, capsys)

    assert cells(text, "0")[1:5] == ["no plan"] * 4
    assert f"plan 0 is corrupt: {path} is not a whole plan: " in text
    assert f"next: rm {path}\n" in text


def test_the_mean_reward_is_over_samples_that_have_one(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small.plan(0)
    for shard, rewards in ((0, [1.0, None, None, None]), (1, [0.0, 0.0, 0.0, 1.0])):
        small.rollout(plan, shard)
        small.reward(plan, shard, rewards=rewards)

    assert status_json(small, capsys)["iterations"][0]["reward"] == 0.4  # 2 of 5


def test_evaluations_have_a_table_and_are_next_once_training_is_complete(
    small: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    small.evaluate(0, "heldout")
    small.complete(0)
    small.rollout(small.plan(0, "later"), 0)

    text = status(small, capsys)

    assert cells(text, "heldout")[:5] == ["heldout", "0", "committed", "committed", "2"]
    assert cells(text, "later")[:5] == ["later", "0", "committed", "missing", "2"]
    assert f"next: slime-stages eval --run {small.run.root} --iter 0\n" in text


def test_an_evaluation_of_the_next_weights_is_no_iteration(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.complete(0)
    small.evaluate(1, "heldout")

    found = status_json(small, capsys)

    assert [part["iteration"] for part in found["iterations"]] == [0]
    assert [(part["split"], part["iteration"], part["reward"]) for part in found["evaluations"]] == [
        ("heldout", 1, 0.5)
    ]
    assert found["next_command"] == f"slime-stages iter --run {small.run.root} --n 1"


def test_json_tells_states_and_figures(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small.plan(0)
    small.rollout(plan, 1)

    [part] = status_json(small, capsys)["iterations"]

    assert part["stages"]["rollout"]["state"] == "missing"
    assert part["stages"]["rollout"]["counts"] == {"corrupt": 0, "stale": 0, "missing": 1, "committed": 1}
    assert (part["samples"], part["tokens"], part["reward"], part["truncated"]) == (4, 24, None, 0.25)
    assert part["next_command"] == f"slime-stages rollout --run {small.run.root} --iter 0 --shard 0"


def test_the_last_twenty_iterations_are_shown_unless_all_are_asked_for(
    small: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for iteration in range(22):
        small.plan(iteration)

    text = status(small, capsys)

    assert [line.split()[0] for line in text.splitlines() if " missing " in line] == [str(i) for i in range(2, 22)]
    assert "(2 earlier iterations; --all shows them)\n" in text
    assert status(small, capsys, "--all").count(" missing ") == text.count(" missing ") * 22 // 20


def test_one_iteration_is_shown_shard_by_shard_with_its_accounts(
    small: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small.plan(0)
    for shard in (0, 1):
        small.rollout(plan, shard)
        small.reward(plan, shard, rewards=[1.0, 0.0, 1.0, None])
    small.train(plan, drop_reasons=[None, None, None, "no_reward", None, None, "trailing", "no_reward"])

    text = status(small, capsys, "--iter", "0")

    header = cells(text, "shard")
    assert dict(zip(header, cells(text, "1"), strict=True)) == {
        "shard": "1",
        "prompts": "2",
        "rollout": "committed",
        "samples": "4",
        "by status": "3 completed, 1 truncated",
        "tokens": "24",
        "reward": "committed",
        "by reward status": "3 scored, 1 error",
        "mean reward": "0.667",
        "rollout s": cells(text, "1")[-2],
        "reward s": cells(text, "1")[-1],
    }
    assert "\nprompts: issued 4 = kept 4 + dropped 0 + carried 0\n" in text
    assert re.search(r"\ntrain: committed in \d+\.\d s, steps 1, grad norm 1.25, \|Δp\| 0.0005\n", text)
    assert "\nsamples: 8 = 5 used + 2 no_reward + 1 trailing\n" in text
    assert "\nsync: missing\n" in text
    assert text.endswith(f"next: slime-stages sync --run {small.run.root} --iter 0\n")


def test_prompts_of_a_missing_shard_are_not_issued_yet(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.rollout(small.plan(0), 1)

    text = status(small, capsys, "--iter", "0")

    assert "prompts: issued 2 = kept 2 + dropped 0 + carried 0; 2 of 4 not issued yet\n" in text
    assert status_json(small, capsys, "--iter", "0")["detail"]["trained"] is None


def test_an_iteration_that_is_not_planned_is_refused(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.plan(0)

    assert main(["status", "--run", str(small.run.root), "--iter", "9"]) == 66
    assert capsys.readouterr().err.startswith("error: there is no plan for iteration 9; ")


def test_a_narrow_terminal_loses_columns_not_letters(
    small: SmallRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small.complete(0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")

    coloured = status(small, capsys)

    text = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert coloured != text
    assert cells(text, "0")[:5] == ["0", "2/2 committed", "2/2 committed", "committed", "committed"]
    assert "(too narrow for: sync s, reward s, tokens, train s, rollout s, " in text
    assert max(len(line.rstrip()) for line in text.splitlines() if "committed" in line) <= 80


def test_the_status_loads_neither_torch_nor_arrow_and_is_quick(small: SmallRun) -> None:
    small.complete(0)
    code = (
        "import sys; from slime_stages.cli.main import main; "
        f"main(['status', '--run', {str(small.run.root)!r}]); "
        "print(sorted({'torch', 'pyarrow', 'transformers', 'sympy'} & set(sys.modules)), file=sys.stderr)"
    )

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert done.stderr == "[]\n"
    assert after.ru_utime - before.ru_utime < 1.5  # seconds; 0.5 on a quiet machine, 0.85 with 100 iterations

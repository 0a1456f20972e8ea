"""`slime-stages eval`: which sets and weights it measures, in how many shards, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_stages.cli.main import main
from slime_stages.errors import UsageError
from slime_stages.launch import single
from slime_stages.launch.job_graph import JobKey, evaluation_jobs
from slime_stages.launch.plans import ensure_eval_plan
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.submission import Submission
from tests.e2e.runs import new_run

Start = Callable[..., RunDir]


@pytest.fixture
def start(tmp_path: Path, tiny_model: Path, tiny_prompts: Path) -> Start:
    """A run with the sets `a` (3 prompts) and `b` (2 prompts), whose samples a function makes up."""

    def begin(**settings: Any) -> RunDir:
        sets = {
            "a": {"path": f"{tiny_prompts}@[0:3]", "max_response_len": 4, "n_samples_per_eval_prompt": 2},
            "b": {"path": f"{tiny_prompts}@[3:5]", "max_response_len": 5},
        }
        functions = {"eval_function_path": "tests.stages.rollout.user_functions.evaluate", "eval_datasets": sets}
        return new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **functions, **settings)

    return begin


def test_all_sets_are_generated_scored_and_shown(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    run = start(log_passrate=True)

    assert main(["eval", "--run", str(run.root)]) == 0

    told = capfd.readouterr()
    names = [Path(line).relative_to(run.root).parts[2:5] for line in told.out.splitlines()]
    assert names == [("eval", name, stage) for name in ("a", "b") for stage in ("rollout", "reward")]
    [head, first, second] = [line.split() for line in told.err.splitlines()[-3:]]
    assert head[:4] == ["evaluation", "weights", "samples", "mean"]
    assert first == ["a", "0", "6", "0.500", "16.7%", "0.0%", "4.0", "0.500", "1.000"]
    assert second[:4] == ["b", "0", "2", "0.500"]


def test_one_set_may_be_named_and_cut_into_shards(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    run = start()

    assert main(["eval", "--run", str(run.root), "--dataset", "a", "--shards", "8", "--version", "0"]) == 0

    assert len(capfd.readouterr().out.splitlines()) == 6  # a rollout and a reward for each of its 3 prompts
    assert not run.plan_path(0, "b").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--dataset", "c"], 2, "has no evaluation set c\n\nhint: it has a, b"),
        (["--iter", "3"], 66, "has no weights 3"),
        (["--slurm-partition", "low"], 2, "--slurm-* are for jobs"),
    ],
)
def test_what_it_cannot_measure_is_refused(
    start: Start, capfd: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    assert main(["eval", "--run", str(start().root), *words]) == code

    assert says in capfd.readouterr().err


def test_a_plan_stays_as_it_was_cut(start: Start) -> None:
    run = start(eval_shards=2)
    ensure_eval_plan(run, 0, "a")

    assert ensure_eval_plan(run, 0, "a", shards=2).shard_count == 2
    with pytest.raises(UsageError, match="planned in 2 shards, not in 3"):
        ensure_eval_plan(run, 0, "a", shards=3)


def test_the_chain_has_a_task_for_every_shard(start: Start) -> None:
    run = start(eval_shards=3, eval_interval=1)

    tasks = {job.key: job.shards for job in evaluation_jobs(run, 0)}

    assert tasks[JobKey("rollout", 0, "a")] == (0, 1, 2)
    assert tasks[JobKey("reward", 0, "b")] == (0, 1)


def test_as_jobs_each_reward_waits_for_its_rollout(
    start: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted: list[Submission] = []

    def submit(submission: Submission) -> Any:
        submitted.append(submission)
        return submission.attempt.with_job(str(len(submitted)), is_array=submission.is_array)

    monkeypatch.setattr(single, "submit_attempt", submit)
    monkeypatch.setattr(single, "scheduler_limits", lambda: type("Limits", (), {"max_array_size": 100}))
    sbatch = Path(__file__).parents[3] / "sbatch"

    assert main(["eval", "--run", str(start(eval_shards=2).root), "--submit", "--sbatch", str(sbatch)]) == 0

    jobs = [(each.attempt.split, each.attempt.stage, each.attempt.shards, each.dependencies) for each in submitted]
    assert jobs == [
        ("a", "rollout", (0, 1), []),
        ("a", "reward", (0, 1), ["1"]),
        ("b", "rollout", (0, 1), []),
        ("b", "reward", (0, 1), ["3"]),
    ]
    assert capfd.readouterr().out.split() == ["1", "2", "3", "4"]


def test_a_run_without_sets_says_how_to_have_one(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None)

    assert main(["eval", "--run", str(run.root)]) == 2

    assert "--eval-config FILE.yaml" in capfd.readouterr().err

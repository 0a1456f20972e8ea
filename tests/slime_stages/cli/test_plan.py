from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.cli import plan
from slime_stages.cli.plan import duration, hours, planned_chain, print_plan, size
from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved

SBATCH = Path(__file__).parents[3] / "sbatch"


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    (tmp_path / "held.jsonl").write_text("{}\n")
    settings = resolved(
        rollout_batch_size=4,
        n_samples_per_prompt=2,
        rollout_shards=2,
        eval_interval=100,
        skip_eval_before_train=True,
        eval_prompt_data=("held", str(tmp_path / "held.jsonl")),
    )
    return SmallRun(run=RunDir(tmp_path / "run"), config=settings.config).start(make_model_folder(tmp_path / "model"))


def planned(small: SmallRun, capsys: pytest.CaptureFixture[str], count: int, **options: bool) -> str:
    iterations = range(count)
    print_plan(small.run, iterations, planned_chain(small.run, iterations, SBATCH, {}, adds=True), **options)
    return capsys.readouterr().out


def test_a_plan_draws_the_graph_and_sums_it_up(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(small, capsys, 2)

    assert text.startswith(f"{small.run.root}: iterations 0 to 1, 10 jobs with 14 tasks\n")
    lines = [line.split() for line in text.splitlines()]
    assert ["rollout", "1", "0-1", "sync", "0"] in [line[:5] for line in lines]
    assert ["├─", "train", "1", "-", "reward", "1"] in [line[:6] for line in lines]
    assert ["rollout", "2", "held", "0", "sync", "1"] in [line[:6] for line in lines]
    assert "GPU-hours" in text
    assert text.endswith(f"\nnext: slime-stages iter --run {small.run.root} --executor slurm --n 2\n")


def test_of_many_iterations_the_first_ones_and_the_end_are_listed(
    small: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    text = planned(small, capsys, 50)

    assert "(188 more jobs, alike; --all shows them)" in text  # 200 and an evaluation, less 12 and the evaluation
    assert "rollout 50 held" in text
    assert "rollout 49 " not in text
    assert "rollout 49 " in planned(small, capsys, 50, everything=True)


def test_scripts_are_printed_for_the_first_iteration(
    small: SmallRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "array_size", lambda: 1001)

    text = planned(small, capsys, 2, scripts=True)

    headings = [line for line in text.splitlines() if line.startswith("##### ")]
    assert headings == ["##### rollout 0", "##### reward 0", "##### train 0", "##### sync 0"]
    assert text.count("#!/bin/bash") == 4


def test_without_a_scheduler_arrays_have_slurms_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert plan.array_size() == 1001


def test_a_run_that_has_it_all_has_nothing_to_submit(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    small.complete(0)
    small.evaluate(1, "held")

    assert planned(small, capsys, 1).startswith(f"{small.run.root}: there is nothing to submit\n")


def test_figures_are_rounded_for_people() -> None:
    assert [duration(seconds) for seconds in (42.4, 750, 11_520)] == ["42 s", "12.5 min", "3.2 h"]
    assert [hours(value) for value in (0.0, 0.0123, 4, 6664.4, None)] == ["0", "0.012", "4", "6,664", "?"]
    assert [size(count) for count in (7, 455_123, 2_000_000_000_000, None)] == ["7 bytes", "455 kB", "2 TB", "?"]

"""`slime-stages trace` over a run of made-up samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_stages.cli.main import main
from slime_stages.run.rundir import RunDir
from slime_stages.trace.handles import bind_trace
from slime_stages.trace.spans import trace_span
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Iteration 0 is traced, all but its first sample; iteration 1 is not. Do not write to it."""
    folder = tmp_path_factory.mktemp("trace")
    small = SmallRun(run=RunDir(folder / "run")).start(make_model_folder(folder / "model"))
    plan = small.plan(0)
    for shard in (0, 1):
        samples = made_up_samples(plan, shard)
        for sample in samples[1 - shard :]:
            bind_trace(sample)
            with trace_span(sample, "generate"):
                pass
        small.rollout(plan, shard, samples=samples)
        small.reward(plan, shard)
    small.train(plan)
    small.sync(plan)
    small.rollout(small.plan(1), 0)
    return small


def trace(small: SmallRun, *words: str, code: int = 0) -> None:
    assert main(["trace", "--run", str(small.run.root), *words]) == code


def names_of(text: str) -> list[str]:
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return [event["args"]["name"] for event in events if event["name"] == "thread_name"]


def test_the_traced_samples_of_an_iteration_are_written(run_of_two: SmallRun, tmp_path: Path) -> None:
    trace(run_of_two, "--iter", "0", "-o", str(tmp_path / "trace.json"))

    assert names_of((tmp_path / "trace.json").read_text()) == [
        "sample 1 (0/0/1)",
        "sample 2 (0/0/2)",
        "sample 3 (0/0/3)",
        "sample 4 (0/1/0)",
        "sample 5 (0/1/1)",
        "sample 6 (0/1/2)",
        "sample 7 (0/1/3)",
    ]


def test_samples_may_be_chosen_and_go_to_stdout(
    run_of_two: SmallRun, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    trace(run_of_two, "--iter", "0", "--sample", "5", "--sample", "0/0/3")

    assert names_of(capfdbinary.readouterr().out.decode()) == ["sample 3 (0/0/3)", "sample 5 (0/1/1)"]


def test_an_iteration_without_traces_says_how_to_get_some(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    trace(run_of_two, "--iter", "1", code=66)

    said = capsys.readouterr().err
    assert "the samples of iteration 1 were made without traces" in said
    assert "trace_samples = true under [rollout]" in said


def test_samples_of_two_iterations_are_two_commands(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    trace(run_of_two, "--sample", "0/0/1", "--sample", "1/0/1", code=2)

    assert "these samples are of the iterations 0, 1" in capsys.readouterr().err

"""Chains that stream on the engines of `serve`: weights change under the stream, and one of several engines dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_stages.data.weight_spans import SPANS_KEY
from slime_stages.launch.states import first_incomplete, iteration_states
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.registry import EngineRecord
from slime_stages.stage import read_run_plan
from slime_stages.weights.record import engine_label
from tests.e2e.runs import leftovers, new_run
from tests.e2e.test_pipeline import ENVIRONMENT, PROGRAM, shell
from tests.e2e.test_service import engine_logs
from tests.e2e.test_streaming import SETTINGS, samples_of
from tests.slime_stages.launch.test_serve import service
from tests.stages.rollout.test_engine_loss import engines_of, request_count

pytestmark = pytest.mark.slow


def wait_until(is_so: Callable[[], bool], *, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def iterating(run: RunDir, count: int, log: Path) -> subprocess.Popen[bytes]:
    words = [PROGRAM, "iter", "--run", str(run.root), "--n", str(count)]
    return subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=log.open("ab"))


def checked_samples(run: RunDir, iterations: int) -> list[Sample]:
    """What was kept, after a look that all is fresh and that each prompt has ended exactly once."""
    assert first_incomplete(run) == iterations
    plans = [read_run_plan(run, iteration) for iteration in range(iterations)]
    states = [item for plan in plans for item in iteration_states(run, plan, deep=True)]
    assert {item.call.title: item.state.reason for item in states if not item.state.is_fresh} == {}
    kept = [sample for iteration in range(iterations) for sample in samples_of(run, iteration)]
    left = samples_of(run, iterations - 1, "carry")
    issued = [read_manifest(run.manifest_path("rollout", i, 0, 1)).counts["issued"] for i in range(iterations)]
    assert Counter(sample.index for sample in [*kept, *left]) == Counter(range(2 * sum(issued)))
    assert {sample.status for sample in kept} <= {"completed", "truncated"}
    assert leftovers(run) == []
    return kept


def served_versions(record: EngineRecord) -> set[str]:
    return {handle.version() for handle in record.handles()}


@pytest.mark.parametrize(("more", "engine_count"), [({}, 1), ({"prefill_num_servers": 1}, 2)])
@pytest.mark.usefixtures("verbs")
def test_a_chain_streams_on_the_engines_of_serve_whose_weights_change_under_it(
    more: dict[str, object], engine_count: int, tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    slow = {"rollout_max_response_len": 400, "sglang_server_concurrency": 2}  # slower than training, on any machine
    settings = {**SETTINGS, "serving_mode": "service", **slow, **more}
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings)

    with service(run, tmp_path / "serve.log") as (_, record):
        done = shell(f"slime-stages iter --run {run.root} --n 4")
        again = shell(f"slime-stages iter --run {run.root} --n 1")
        versions = served_versions(record)

    assert (done.returncode, again.returncode) == (0, 0), done.stderr + again.stderr
    kept = checked_samples(run, 5)
    assert versions == {engine_label(run.weights_path(5), 5)}
    assert any(SPANS_KEY in sample.metadata for sample in kept)
    assert [name.startswith("engine-service-") for name in engine_logs(run)] == [True] * engine_count


def test_of_two_engines_under_a_stream_one_dies_and_nothing_is_lost_or_doubled(
    tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "serving_mode": "service", "rollout_num_engines": 2, "sglang_server_concurrency": 4}
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings)
    log, serve_log = tmp_path / "iter.log", tmp_path / "serve.log"

    with service(run, serve_log) as (process, record):
        with iterating(run, 3, log) as chain:
            wait_until(lambda: chain.poll() is not None or run.manifest_path("sync", 0).exists())
            engines = list(engines_of(process))
            wait_until(lambda: chain.poll() is not None or all(map(request_count, engines)))
            os.kill(engines[0].pid, signal.SIGKILL)
            assert chain.wait(400) == 0, log.read_text()
        wait_until(lambda: "is back" in serve_log.read_text())
        done = shell(f"slime-stages iter --run {run.root} --n 1")
        versions = served_versions(record)

    assert len(engines) == 2
    assert done.returncode == 0, done.stderr
    kept = checked_samples(run, 4)
    assert "is dead; it is started again" in serve_log.read_text()
    assert versions == {engine_label(run.weights_path(4), 4)}
    assert {version for sample in kept for version in sample.weight_versions} > {"0", "1"}

"""Whole chains by `iter` on engines that stay, those of `serve` and external ones, with the weights of each turn."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.serving.registry import SERVICE
from slime_stages.weights.record import engine_label
from tests.e2e.runs import new_run
from tests.e2e.test_pipeline import shell
from tests.slime_stages.launch.test_serve import service

pytestmark = pytest.mark.slow


def versions(run: RunDir, iteration: int) -> set[tuple[str, ...]]:
    """Of the weights that wrote the samples of an iteration."""
    shards = [run.shard_path("rollout", iteration, shard, 2) for shard in (0, 1)]
    return {tuple(sample.weight_versions) for path in shards for sample in read_samples(path)}


def engine_logs(run: RunDir) -> list[str]:
    """Names, without those of routers."""
    names = [path.name for path in run.log_path("x").parent.glob("engine-*.log")]
    return [name for name in names if "-router-" not in name]


@pytest.mark.parametrize(("settings", "engine_count"), [({}, 1), ({"prefill_num_servers": 1}, 2)])
@pytest.mark.usefixtures("verbs")
def test_two_iterations_on_the_engines_of_serve_which_leave_no_process_behind(
    settings: dict[str, object], engine_count: int, tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, serving_mode="service", **settings)
    log = tmp_path / "serve.log"

    with service(run, log) as (process, record):
        done = shell(f"slime-stages iter --run {run.root} --n 2")
        newest = {handle.version() for handle in record.handles()}
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    _, alive = psutil.wait_procs(below, timeout=15)

    assert done.returncode == 0, done.stderr
    assert [versions(run, iteration) for iteration in (0, 1)] == [{("0",)}, {("1",)}]
    assert newest == {engine_label(run.weights_path(2), 2)}  # sync has given them the newest
    assert [name.startswith(f"engine-{SERVICE}-") for name in engine_logs(run)] == [True] * engine_count
    assert (code, alive, list(run.engines_path.iterdir())) == (0, [], []), log.read_text()


def test_two_iterations_on_an_external_engine_which_gets_the_weights_of_each_and_lives_on(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine)

    done = shell(f"slime-stages iter --run {run.root} --n 2")

    assert done.returncode == 0, done.stderr
    assert [versions(run, iteration) for iteration in (0, 1)] == [{("0",)}, {("1",)}]
    assert engine.version() == engine_label(run.weights_path(1), 1)
    assert engine_logs(run) == []
    assert engine.is_healthy()

"""`slime-stages serve` for real: rollouts use its engines, sync gives them new weights, a signal ends it in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from slime_stages.errors import MissingInputError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.serve import serve
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.registry import SERVICE, EngineRecord, find_engines
from slime_stages.stage import read_config
from slime_stages.weights.publish import publish_link
from slime_stages.weights.record import engine_label
from stages.sync.tell import tell_engines
from tests.e2e.runs import new_run
from tests.e2e.stage_calls import ROOT
from tests.fixtures.tiny_model import make_tiny_model

MAIN = [sys.executable, "-m", "slime_stages.cli.main"]


@contextmanager
def service(run: RunDir, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], EngineRecord]]:
    """The command, once its engines serve."""
    words = [*MAIN, "serve", "--run", str(run.root)]
    with subprocess.Popen(words, cwd=ROOT, stderr=log.open("wb")) as process:
        try:
            deadline = time.monotonic() + 200
            while not (found := find_engines(run.engines_path, kind=SERVICE)):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield process, found[0]
        finally:
            process.kill()


def rollout(run: RunDir) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "stages.rollout", "--run", str(run.root), "--iter", "0", "--shard", "0"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def test_rollouts_use_the_engines_of_serve_and_sync_gives_them_new_weights(
    tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    settings = {"serving_mode": "service", "service_wait_seconds": 5.0}
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings)
    config = read_config(run, ensure_plan(run, 0).config_revision)
    log = tmp_path / "serve.log"

    with service(run, log) as (process, record):
        done = rollout(run)
        publish_link(make_tiny_model(tmp_path / "newer", seed=1), run.weights_path(1))
        tell_engines(run, config, run.weights_path(1), 1)
        version = EngineHandle(record.url).version()
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    _, alive = psutil.wait_procs(below, timeout=15)

    assert done.returncode == 0, done.stderr
    assert read_manifest(run.manifest_path("rollout", 0, 0, 2)).rows == 4
    assert list(run.log_path("x").parent.glob("engine-000000*")) == []
    assert version == engine_label(run.weights_path(1), 1)
    assert code == 0, log.read_text()
    assert list(run.engines_path.iterdir()) == []
    assert alive == []


@pytest.mark.slow
def test_a_rollout_goes_on_with_engines_of_its_own_where_nobody_serves(
    tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    settings = {"serving_mode": "service", "service_wait_seconds": 0.1}
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings)
    ensure_plan(run, 0)

    done = rollout(run)

    assert done.returncode == 0, done.stderr
    assert "the engines of `serve` are of no use after 0.1 s: nobody serves; this job starts its own" in done.stderr
    assert [path.name for path in run.log_path("x").parent.glob("engine-000000*")] == ["engine-000000-00000.log"]


def test_a_run_without_weights_has_nothing_to_serve(tiny_model: Path, tiny_prompts: Path, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None)
    run.weights_path(0).rename(tmp_path / "away")

    with pytest.raises(MissingInputError, match="has no weights to serve"):
        serve(run)


def test_serve_takes_options_of_sbatch_only_for_a_job(tiny_model: Path, tiny_prompts: Path, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None)
    words = [*MAIN, "serve", "--run", str(run.root), "--slurm-mem", "3G"]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))

    assert done.returncode == 2
    assert "--slurm-* are for jobs" in done.stderr

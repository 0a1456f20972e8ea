"""A rollout job with engines of its own loses one: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.errors import SlimeStagesError
from slime_stages.launch.plans import ensure_plan
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.serving.handle import EngineHandle
from tests.e2e.runs import copy_run, new_run
from tests.e2e.stage_calls import ROOT

SETTINGS = {
    "rollout_shards": 1,
    "rollout_batch_size": 12,
    "n_samples_per_prompt": 4,
    "rollout_max_response_len": 300,
    "rollout_stop_token_ids": [],
    "sglang_server_concurrency": 8,
}
TWO: dict[str, object] = {"rollout_num_engines": 2, "router": {"policy": "consistent_hashing"}}
PAIR: dict[str, object] = {"prefill_num_servers": 1}


def rollout(run: RunDir, log: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "stages.rollout", "--run", str(run.root), "--iter", "0", "--shard", "0"]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=log.open("wb"))


def engines_of(process: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    """The servers below the guards of a rollout."""
    for guard in psutil.Process(process.pid).children():
        with suppress(psutil.NoSuchProcess):  # a helper that has ended meanwhile
            yield from [child for child in guard.children() if "sglang.launch_server" in " ".join(child.cmdline())]


def request_count(engine: psutil.Process) -> int:
    """Requests that an engine works on; none while it starts."""
    words = engine.cmdline()
    try:
        return EngineHandle(f"http://127.0.0.1:{words[words.index('--port') + 1]}").request_count()
    except SlimeStagesError:
        return 0


def kind(engine: psutil.Process) -> str:
    words = engine.cmdline()
    return words[words.index("--disaggregation-mode") + 1] if "--disaggregation-mode" in words else "regular"


def working(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The engines that have requests for as long as there are some."""
    return [engine for engine in engines_of(process) if kind(engine) != "prefill"]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "lost"), [(TWO, "regular"), (PAIR, "prefill"), (PAIR, "decode")])
@pytest.mark.usefixtures("verbs")
def test_a_rollout_that_loses_an_engine_makes_the_same_shard(
    settings: dict[str, object], lost: str, tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **SETTINGS, **settings)
    ensure_plan(run, 0)
    undisturbed = copy_run(run, tmp_path / "undisturbed")
    with rollout(undisturbed, tmp_path / "undisturbed.log") as process:
        assert process.wait(300) == 0

    log = tmp_path / "disturbed.log"
    with rollout(run, log) as process:
        deadline = time.monotonic() + 200
        while not (asked := working(process)) or min(map(request_count, asked)) == 0:
            assert time.monotonic() < deadline
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        victim = next(engine for engine in engines_of(process) if kind(engine) == lost)
        os.kill(victim.pid, signal.SIGKILL)
        below = psutil.Process(process.pid).children(recursive=True)
        assert process.wait(300) == 0, log.read_text()
    _, alive = psutil.wait_procs(below, timeout=15)

    path = run.manifest_path("rollout", 0, 0, 1)
    samples = read_samples(path.with_suffix(".parquet"))
    assert "is dead; it is started again" in log.read_text()
    assert sorted(sample.index or 0 for sample in samples) == list(range(48))
    assert {sample.status for sample in samples} <= {"completed", "truncated"}
    assert read_manifest(path).content == read_manifest(undisturbed.manifest_path("rollout", 0, 0, 1)).content
    assert alive == []

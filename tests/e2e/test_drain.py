"""A rollout that is told to stop, and all its processes with it, ends in good order; later it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slime_stages.launch.plans import ensure_plan
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from slime_stages.serving.registry import register_engine
from slime_stages.slurm.requeue import progress_of
from slime_stages.stage import StageCall
from tests.e2e.runs import copy_run, leftovers, manifest_path, new_run
from tests.e2e.stage_calls import ROOT, Forker

GROUPS = 12
SECONDS_TO_END = 20.0
"""On a busy machine; a rollout waits 5 s for what runs, and its engine ends within a second."""
ANSWERED = "SLIME_STAGES_TEST_ANSWERED"


def note_answer(args: object, sample: Sample) -> None:
    """A sample hook: keeps a list of all answers, in a file that the environment names."""
    if path := os.environ.get(ANSWERED):
        with open(path, "a") as file:
            file.write(f"{sample.index}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_rollout_that_is_told_to_stop_keeps_its_groups_and_the_next_attempt_makes_the_rest(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path, number: signal.Signals
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **SETTINGS)
    ensure_plan(run, 0)
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0)
    expected = undisturbed_content(run, call, engine, forker, tmp_path / "undisturbed")
    answered = tmp_path / "answered"

    said, seconds, left = drained(call, number, answered)
    kept = progress_of(run, call)
    print(f"kept {kept} of {GROUPS} groups, ended after {seconds:.1f} s")
    register_engine(run.engines_path, "warm", url=engine.url, pid=engine.pid)
    again = subprocess.run(words(call), cwd=ROOT, env=environment(answered), check=False)

    assert f"drained ({number.name}): {kept} of {GROUPS} groups are in the journal; the same command goes on" in said
    assert 1 <= kept < GROUPS
    assert seconds < SECONDS_TO_END
    assert left == []
    assert again.returncode == 0
    assert read_manifest(manifest_path(run, call)).content == expected
    assert sorted(map(int, answered.read_text().split())) == list(range(2 * GROUPS))
    assert leftovers(run) == []


SETTINGS = {
    "rollout_batch_size": GROUPS,
    "rollout_shards": 1,
    "rollout_max_response_len": 30,
    "sglang_server_concurrency": 2,
    "rollout_sample_hook_path": ["tests.e2e.test_drain.note_answer"],
}
"""One group after the other, and some tenths of a second for each."""


def undisturbed_content(run: RunDir, call: StageCall, engine: Engine, forker: Forker, folder: Path) -> str:
    """Digest of the samples that the engine of the session gives."""
    copy = copy_run(run, folder)
    register_engine(copy.engines_path, "warm", url=engine.url, pid=engine.pid)
    same = StageCall(stage="rollout", run=copy.root, iteration=0, shard=0)
    outcome = forker.run(same)
    assert outcome.result is not None
    assert outcome.result.exit_code == 0, outcome.result
    return read_manifest(manifest_path(copy, same)).content


def drained(call: StageCall, number: signal.Signals, answered: Path) -> tuple[str, float, list[psutil.Process]]:
    """What a rollout says that gets a signal after its first group, how long it takes to end, and who outlives it."""
    with subprocess.Popen(words(call), cwd=ROOT, env=environment(answered), stderr=subprocess.PIPE, text=True) as stage:
        while not progress_of(RunDir(call.run), call):
            assert stage.poll() is None, stage.communicate()
            time.sleep(0.05)
        processes = psutil.Process(stage.pid).children(recursive=True)
        started = time.monotonic()
        for process in [*processes, psutil.Process(stage.pid)]:
            process.send_signal(number)
        _, said = stage.communicate(timeout=120)
        seconds = time.monotonic() - started
    assert stage.returncode == 75, said
    assert len(processes) >= 3  # the guard, the server, its scheduler
    return said, seconds, psutil.wait_procs(processes, timeout=5)[1]


def words(call: StageCall) -> list[str]:
    command = [sys.executable, "-m", "stages.rollout", "--run", str(call.run)]
    return [*command, "--iter", str(call.iteration), "--shard", str(call.shard)]


def environment(answered: Path) -> dict[str, str]:
    return {**os.environ, ANSWERED: str(answered), "OMP_NUM_THREADS": "1"}

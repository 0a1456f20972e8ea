"""A stream with a real engine and real training: it is killed and told to end, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.data.weight_spans import SPANS_KEY
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import calls_of, iteration_states
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from tests.e2e.runs import leftovers, mend, new_run
from tests.e2e.stage_calls import ROOT, Forker
from tests.e2e.test_carried import transformers_log_probs

ITERATIONS = 4
SETTINGS = {
    "rollout_streaming": True,
    "partial_rollout": True,
    "staleness": 1,
    "use_tis": True,
    "rollout_shards": 1,
    "over_sampling_batch_size": 6,
    "rollout_max_response_len": 160,
    "rollout_stop_token_ids": [],
    "sglang_server_concurrency": 7,
    "max_tokens_per_gpu": 1024,
}


@contextmanager
def stream(run: RunDir, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a shard over all iterations."""
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0, until=ITERATIONS)
    words = [sys.executable, "-m", "slime_stages.launch.one_call", call.to_json(), "1", str(os.getpid())]
    with log.open("ab") as file, subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=file) as process:
        try:
            yield process
        finally:
            process.kill()


def wait(run: RunDir, iteration: int, process: subprocess.Popen[bytes], *, groups: int = 0) -> None:
    """Until a shard is committed; or, with `groups`, until so many of the next one's are in its journal."""
    deadline = time.monotonic() + 200
    path, journal = run.manifest_path("rollout", iteration, 0, 1), run.journal_path(iteration, 0)
    while not (any(file.stat().st_size > 2000 for file in journal.glob("*.arrows")) if groups else path.exists()):
        assert process.poll() is None or path.exists(), process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def train(run: RunDir, iteration: int, forker: Forker) -> None:
    for call in calls_of(run, ensure_plan(run, iteration)):
        if call.stage != "rollout":
            outcome = forker.run(call)
            assert outcome.result is not None
            assert outcome.result.exit_code == 0, (call.title, outcome.result)


def samples_of(run: RunDir, iteration: int, stage: str = "rollout") -> list[Sample]:
    return read_samples(run.shard_path(stage, iteration, 0, 1))


@pytest.mark.slow
def test_a_stream_that_is_killed_and_told_to_end_loses_nothing_and_names_the_version_of_every_token(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    run, log = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, **SETTINGS), tmp_path / "stream.log"
    for iteration in range(ITERATIONS):
        ensure_plan(run, iteration)

    with stream(run, log) as process:
        wait(run, 0, process)
        wait(run, 1, process, groups=1)
        process.kill()
    train(run, 0, forker)
    with stream(run, log) as process:
        wait(run, 2, process, groups=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0  # how the call ended is in its answer
        assert process.stdout is not None
        assert b'"exit_code":75' in process.stdout.read()
    train(run, 1, forker)
    with stream(run, log) as process:
        assert process.wait(200) == 0

    kept = [sample for iteration in range(ITERATIONS) for sample in samples_of(run, iteration)]
    left = samples_of(run, ITERATIONS - 1, "carry")
    issued = [read_manifest(run.manifest_path("rollout", i, 0, 1)).counts["issued"] for i in range(ITERATIONS)]
    assert Counter(sample.index for sample in [*kept, *left]) == Counter(range(2 * sum(issued)))
    states = [item for i in range(ITERATIONS) for item in iteration_states(run, ensure_plan(run, i), deep=True)]
    assert [item.state.kind for item in states if item.call.stage == "rollout"] == ["fresh"] * ITERATIONS
    assert leftovers(run) == []
    assert_versions_fit(run, kept)
    print(log.read_text())


def assert_versions_fit(run: RunDir, samples: list[Sample]) -> None:
    """Some responses were written by two versions, and each token has the log-prob that its version gives it."""
    mixed = [sample for sample in samples if SPANS_KEY in sample.metadata]
    print(f"{len(mixed)} of {len(samples)} by several versions: {[s.metadata[SPANS_KEY] for s in mixed]}")
    assert mixed
    for sample in mixed[:3]:
        for version, start, stop in sample.metadata[SPANS_KEY]:
            expected = transformers_log_probs(run.weights_path(int(version)), sample)[start:stop]
            assert (sample.rollout_log_probs or [])[start:stop] == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.slow
def test_the_local_loop_trains_beside_a_stream(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, **SETTINGS)

    mend(run, forker, count=3)

    states = [item for i in range(3) for item in iteration_states(run, ensure_plan(run, i), deep=True)]
    assert [item.call.title for item in states if not item.state.is_fresh] == []
    made = [read_manifest(run.manifest_path(stage, 0)) for stage in ("train", "sync")]
    ahead = read_manifest(run.manifest_path("rollout", 1, 0, 1))
    assert ahead.finished < made[0].finished
    assert leftovers(run) == []

"""`iter` under Ctrl-C, beside a service and with engines of its own: what ends, what stays, and what is asked again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.states import first_incomplete
from slime_stages.run.rundir import RunDir
from slime_stages.serving.registry import find_engines
from slime_stages.slurm.requeue import progress_of
from slime_stages.stage import StageCall
from tests.e2e.runs import leftovers, new_run
from tests.e2e.test_drain import ANSWERED, GROUPS
from tests.e2e.test_drain import SETTINGS as ONE_GROUP_AFTER_THE_OTHER
from tests.e2e.test_pipeline import ENVIRONMENT, PROGRAM
from tests.e2e.test_streaming import SETTINGS as STREAMING
from tests.e2e.test_streaming_service import checked_samples, wait_until
from tests.slime_stages.launch.test_serve import service

pytestmark = pytest.mark.slow
SECONDS_TO_END = 30.0
"""On a busy machine; a rollout waits 5 s for what runs."""


class Loop:
    """An `iter` at work in a group of processes of its own, as a terminal starts it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""

    def until(self, is_so: Callable[[], bool]) -> None:
        wait_until(lambda: self.process.poll() is not None or is_so())
        assert self.process.poll() is None, self.process.communicate()[1]

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """The exit code, once it is through; no process that it began is left by then."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        started = time.monotonic()
        _, self.said = self.process.communicate(timeout=120)
        assert time.monotonic() - started < SECONDS_TO_END, self.said
        assert psutil.wait_procs(below, timeout=5)[1] == [], self.said
        return self.process.returncode


@contextmanager
def iterating(run: RunDir, count: int, answered: Path) -> Iterator[Loop]:
    words = [PROGRAM, "iter", "--run", str(run.root), "--n", str(count)]
    environment = {**ENVIRONMENT, ANSWERED: str(answered)}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield Loop(process)
        finally:
            process.kill()


def finish(run: RunDir, answered: Path) -> None:
    """Go on, and an iteration further."""
    with iterating(run, 1, answered) as loop:
        _, said = loop.process.communicate(timeout=400)
    assert loop.process.returncode == 0, said


def asked_again(answered: Path) -> set[int]:
    """Samples that were finished more than once."""
    return {index for index, count in Counter(map(int, answered.read_text().split())).items() if count > 1}


def engine_logs(run: RunDir) -> set[str]:
    """Who has started engines for this run."""
    return {path.stem.split("-")[1] for path in run.log_path("x").parent.glob("engine-*.log")}


def test_ctrl_c_again_and_again_leaves_the_service_and_loses_no_finished_group(
    tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    settings = {**ONE_GROUP_AFTER_THE_OTHER, "serving_mode": "service", "keep_weights": 4}
    run, answered = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings), tmp_path / "answered"
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0)

    with service(run, tmp_path / "serve.log") as (serving, record):
        with iterating(run, 1, answered) as loop:
            loop.until(lambda: progress_of(run, call) > 0)
            loop.press_ctrl_c()
            assert loop.end() == 75, loop.said
        once = progress_of(run, call)
        assert f"drained (SIGINT): {once} of {GROUPS} groups are in the journal" in loop.said

        with iterating(run, 0, answered) as loop:
            loop.until(lambda: progress_of(run, call) > once)
            os.kill(loop.process.pid, signal.SIGINT)  # to it alone, as `kill` sends it
            assert loop.end() == 75, loop.said
        alone = progress_of(run, call)
        assert f"drained (SIGTERM): {alone} of {GROUPS} groups are in the journal" in loop.said
        assert asked_again(answered) == set()

        with iterating(run, 0, answered) as loop:
            loop.until(lambda: progress_of(run, call) > alone)
            loop.press_ctrl_c()
            time.sleep(0.5)
            loop.press_ctrl_c()
            assert loop.end() == 130, loop.said
        twice = progress_of(run, call)
        kept = {int(index) for index in answered.read_text().split()[: 2 * twice]}
        finish(run, answered)
        is_serving = serving.poll() is None and all(handle.is_healthy() for handle in record.handles())

    print(f"in the journal: {once}, {alone}, {twice} of {GROUPS} groups")
    assert is_serving
    assert 0 < once < alone < twice < GROUPS
    assert asked_again(answered) & kept == set()
    assert engine_logs(run) == {"service"}
    samples = [sample for i in range(2) for sample in read_samples(run.shard_path("rollout", i, 0, 1))]
    assert sorted(sample.index or 0 for sample in samples) == list(range(4 * GROUPS))
    assert first_incomplete(run) == 2
    assert leftovers(run) == []


def test_ctrl_c_ends_the_engines_that_iter_has_started(tiny_model: Path, tiny_prompts: Path, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **ONE_GROUP_AFTER_THE_OTHER)
    answered = tmp_path / "answered"
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0)

    with iterating(run, 1, answered) as loop:
        loop.until(lambda: progress_of(run, call) > 0)
        loop.press_ctrl_c()
        assert loop.end() == 75, loop.said
    finish(run, answered)

    assert "drained (SIGINT)" in loop.said
    assert find_engines(run.engines_path) == []
    assert asked_again(answered) == set()
    assert engine_logs(run) == {"warm"}
    assert leftovers(run) == []


def test_ctrl_c_while_training_beside_a_stream_goes_on_where_both_were(
    tiny_model: Path, tiny_prompts: Path, tmp_path: Path
) -> None:
    settings = {**STREAMING, "serving_mode": "service"}
    run, answered = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings), tmp_path / "answered"

    with service(run, tmp_path / "serve.log") as (serving, record):
        with iterating(run, 3, answered) as loop:
            loop.until(lambda: run.manifest_path("reward", 0, 0, 1).exists())
            loop.press_ctrl_c()
            code = loop.end()
        finish(run, answered)
        is_serving = serving.poll() is None and all(handle.is_healthy() for handle in record.handles())

    assert code == 75, loop.said
    assert "drained (SIGINT)" in loop.said
    assert is_serving
    assert engine_logs(run) == {"service"}
    assert first_incomplete(run) >= 2
    checked_samples(run, first_incomplete(run))

"""Several trainer processes on this machine: start them, wait, and pass on how they ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slime_stages.drain import Drained, count_progress, drain_reason, listening
from slime_stages.errors import InternalError
from slime_stages.stage import Stage
from slime_stages.weights.partial import saved_steps
from stages.train.ranks import read_error

POLL_SECONDS = 0.1
END_SECONDS = 10.0
"""How long the others may take to notice that one of them is gone."""


def run_processes(stage: Stage) -> Path:
    """Run `stages.train.worker` in every trainer process of the config; returns the manifest's path.

    Raises the error of the first process that told one; InternalError if one died without a word.
    """
    before = saved_steps(stage.run, stage.plan.iteration)
    with tempfile.TemporaryDirectory(prefix="slime-stages-train-") as folder:
        workers = _start(stage, Path(folder) / "ranks")
        try:
            with listening(lambda: _pass_on(workers)):
                code = _wait(workers)
        finally:
            _kill(workers)
        told = read_error(Path(folder) / "ranks")
    count_progress(max(0, saved_steps(stage.run, stage.plan.iteration) - before))
    if told is not None:
        raise told
    if code and (reason := drain_reason()) is not None:
        raise Drained(reason)
    if code:
        raise InternalError(f"a trainer process ended with {code}", hint="their last lines are above")
    return stage.manifest_path


def _start(stage: Stage, folder: Path) -> list[subprocess.Popen[bytes]]:
    count = stage.config.train.process_count
    threads = max(1, (os.cpu_count() or 1) // count)
    environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    words = [sys.executable, "-m", "stages.train.worker", stage.call.to_json(), str(folder)]
    return [
        subprocess.Popen([*words, str(rank), str(count), str(os.getpid())], stdout=2, env=environment)
        for rank in range(count)
    ]


def _wait(workers: list[subprocess.Popen[bytes]]) -> int:
    """0 once all have ended well; otherwise the first other code, as soon as the rest had time to end with it."""
    deadline = float("inf")
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        if deadline == float("inf") and any(worker.returncode for worker in workers):
            deadline = time.monotonic() + END_SECONDS
        time.sleep(POLL_SECONDS)
    return next((worker.returncode for worker in workers if worker.returncode), 0)


def _pass_on(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()


def _kill(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()
        worker.wait()

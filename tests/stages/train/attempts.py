"""Attempts at the train stage in processes of their own, with signals and kills at chosen moments.

A server forks them, which has the imports behind it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_stages.drain import Drained, install_drain
from slime_stages.errors import SlimeStagesError
from slime_stages.isolation.process_tree import children
from slime_stages.launch.run_stage import run_stage
from slime_stages.stage import StageCall

PRELOADED = ["stages.train.preload", "stages.train.run", "stages.reward.run", "tests.stages.train.attempts"]
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A process that makes a call."""

    call: StageCall
    log: Path
    """Takes its stderr."""
    out: Path | None = None
    """Takes its stdout, if that is not to go to the log."""
    number: int | None = None
    """A signal that it gets …"""
    after: str = "step 1"
    """… when this is done: `step N`, `load` or `save` (begun, not done); or there are `N children`."""
    killed_after: str = ""
    """The same, for SIGKILL of the process that does it; and within: `forward in step N`, likewise `backward` and
    `optimizer`, and `file of model` or of `optimizer`, of a checkpoint."""
    environment: dict[str, str] = field(default_factory=dict)


def outcomes(*attempts: Attempt) -> list[int]:
    """Run attempts at the same time; the exit code of each, or minus the signal that it died of."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [context.Process(target=make, args=(attempt,)) for attempt in attempts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert None not in codes, f"{codes}: not ended after {TIMEOUT_SECONDS:.0f} s; see {attempts[0].log}"
    return [code for code in codes if code is not None]


def outcome(attempt: Attempt) -> int:
    return outcomes(attempt)[0]


def make(attempt: Attempt) -> None:
    """Within the process: what `python -m stages.train` does, with its exit codes."""
    for descriptor, path in ((1, attempt.out or attempt.log), (2, attempt.log)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.environ.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **attempt.environment})
    install_drain()
    try:
        with signalled(attempt):
            print(run_stage(attempt.call), flush=True)
    except SlimeStagesError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Drained as error:
        print(f"drained: {error.message}", file=sys.stderr)
        sys.exit(75)


@contextmanager
def signalled(attempt: Attempt) -> Iterator[None]:
    """Have this process get the attempt's signal at the moment that it names."""
    import torch
    from megatron.core.tensor_parallel.cross_entropy import _VocabParallelCrossEntropy as CrossEntropy

    from stages.train.megatron import async_writer, checkpoint
    from stages.train.megatron.step import Trainer
    from stages.train.objective import Objective

    def reached(moment: str) -> None:
        if moment == attempt.after and attempt.number is not None:
            print(f"signal at {time.time()}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), attempt.number)
        if moment == attempt.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def count_children() -> None:
        while f"{len(children(os.getpid()))} children" != attempt.after:
            time.sleep(0.1)
        reached(attempt.after)

    steps: list[Any] = []

    def after_step(result: Any) -> None:
        steps.append(result)
        reached(f"step {len(steps)}")

    def within_step(name: str) -> Callable[[Any], None]:
        return lambda _: reached(f"{name} in step {len(steps) + 1}")

    if attempt.after.endswith("children"):
        threading.Thread(target=count_children, daemon=True).start()
    with (
        watched(Trainer, "train_step", after=after_step),
        watched(Objective, "__call__", after=within_step("forward")),
        watched(CrossEntropy, "backward", after=within_step("backward")),
        watched(torch.optim.AdamW, "step", after=within_step("optimizer")),
        watched(async_writer, "_write", after=lambda file: reached(f"file of {part_of(file)}")),
        watched(checkpoint, "load", after=lambda _: reached("load")),
        watched(checkpoint, "save", after=lambda _: reached("save")),
    ):
        yield


def part_of(file: Any) -> str:
    return "optimizer" if file.name.startswith("optimizer") else "model"


@contextmanager
def watched(owner: Any, name: str, *, after: Callable[[Any], None]) -> Iterator[None]:
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        after(result)
        return result

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


KILL, TERM, USR2 = signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2


if __name__ == "__main__":  # a task of a job: the run, and which task gets which signal, come from the environment
    told = os.environ["NUMBER"] if os.environ["TASK"] == os.environ["SLURM_PROCID"] else "0"
    call = StageCall(stage="train", run=Path(os.environ["RUN"]), iteration=0)
    make(Attempt(call=call, log=Path("/dev/stderr"), number=int(told) or None))

"""Stages that sleep, then commit made-up outputs, and note when their process began and when they were done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from slime_stages.lineage import shard_manifest_path
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_config, read_run_plan
from tests.slime_stages.cli.small_run import SmallRun

STAGES = ("rollout", "reward", "train", "sync")
SECONDS = "SLIME_STAGES_BENCHMARK_SECONDS"


def write_package(folder: Path) -> None:
    """A package `stages` in `folder`, which jobs that start there take for ours."""
    for stage in STAGES:
        (folder / "stages" / stage).mkdir(parents=True)
        (folder / "stages" / stage / "__init__.py").touch()
        text = f'from benchmarks.sleeping import sleeping\n\nrun = sleeping("{stage}")\n'
        (folder / "stages" / stage / "run.py").write_text(text)
    (folder / "stages" / "__init__.py").touch()


def sleeping(stage: str) -> Callable[[StageCall], Path]:
    def run(call: StageCall) -> Path:
        time.sleep(float(os.environ[SECONDS]))
        run_dir = RunDir(call.run)
        plan = read_run_plan(run_dir, call.iteration)
        small = SmallRun(run=run_dir, config=read_config(run_dir, plan.config_revision))
        if call.shard is None:
            getattr(small, stage)(plan)
        else:
            getattr(small, stage)(plan, call.shard)
        note(run_dir.root / "times", f"{call.iteration}-{stage}-{call.shard}", psutil.Process().create_time())
        return shard_manifest_path(run_dir, plan, stage, call.shard)

    return run


def note(folder: Path, name: str, began: float) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"{began} {time.time()}")

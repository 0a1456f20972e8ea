"""Runs of the tiny model for end-to-end tests: small, seeded, and with rewards that every rerun gives again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime_stages.config import resolve
from slime_stages.launch.iterate import iterate, iterations_to_run
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.run_stage import StageResult
from slime_stages.launch.start_run import mend_run, start_run
from slime_stages.launch.states import calls_of
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir, find_run
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall, read_run_plan
from tests.e2e.stage_calls import Forker

SETTINGS = """
[model]
hf_checkpoint = "{model}"
[data]
prompt_data = ["{prompts}"]
input_key = "prompt"
label_key = "label"
apply_chat_template = true
[rollout]
rollout_batch_size = 4
n_samples_per_prompt = 2
rollout_max_response_len = 6
rollout_shards = 2
[reward]
custom_rm_path = "tests.e2e.rewards.parity"
reward_workers = 1
[train]
use_dynamic_batch_size = true
max_tokens_per_gpu = 256
[optimizer]
lr = 1e-3
"""
TEMPORARY = (".tmp-", ".claim-", ".journal-")


def new_run(folder: Path, model: Path, prompts: Path, *, engine: Engine | None, **flags: Any) -> RunDir:
    """Start a run; flags are settings over `SETTINGS`. Without an engine, its rollouts start their own."""
    config = folder.with_suffix(".toml")
    config.write_text(SETTINGS.format(model=model, prompts=prompts))
    serving = {"rollout_external_engine_addrs": [engine.url.removeprefix("http://")]} if engine else {}
    run = RunDir(folder)
    start_run(run, resolve(config, {**serving, **flags}).config)
    return run


def at_version_0(engine: Engine) -> Engine:
    """The engine with the weights that it began with, under the name that it began with."""
    engine.update_weights(engine.model, "0")
    return engine


def run_iteration(run: RunDir, iteration: int, forker: Forker) -> None:
    for call in calls_of(run, ensure_plan(run, iteration)):
        outcome = forker.run(call)
        assert outcome.result is not None, (call.title, outcome.signal, forker.log)
        assert outcome.result.exit_code == 0, (call.title, outcome.result)


class ForkingExecutor:
    """Runs the loop's stages by the forker of the session, which has its imports behind it."""

    def __init__(self, forker: Forker) -> None:
        self._forker = forker

    def run(self, call: StageCall) -> StageResult:
        outcome = self._forker.run(call)
        assert outcome.result is not None, (call.title, outcome.signal, self._forker.log)
        return outcome.result


def mend(run: RunDir, forker: Forker, count: int = 0) -> None:
    """What `slime-stages iter --run RUN --n 0` does."""
    found = find_run(run.root)
    mend_run(found)
    executor: Any = ForkingExecutor(forker)
    iterate(found, iterations_to_run(found, count), executor=executor, on_event=lambda event: None)


def copy_run(run: RunDir, folder: Path) -> RunDir:
    """A copy of a run folder, which is as good as the original: nothing in it says where it lies."""
    shutil.copytree(run.root, folder, symlinks=True)
    return RunDir(folder)


def without(run: RunDir, iteration: int, stage: str, shard: int | None = None) -> RunDir:
    """Take the run back to the time before a stage of its newest iteration; of a shard, that one alone."""
    if shard is not None:
        plan = read_run_plan(run, iteration)
        path = shard_manifest_path(run, plan, stage, shard)
        path.unlink()
        path.with_suffix(".parquet").unlink()
        return run
    later = ("rollout", "reward", "train", "sync")
    for name in later[later.index(stage) :]:
        shutil.rmtree(run.stage_path(name, iteration), ignore_errors=True)
    shutil.rmtree(run.weights_path(iteration + 1), ignore_errors=True)
    if stage != "sync":
        shutil.rmtree(run.checkpoints_path / f"iter_{iteration + 1:07d}", ignore_errors=True)
        run.metrics_path("train").unlink()
    return run


def from_the_start(run: RunDir) -> RunDir:
    """Take the run back to the time before its first iteration."""
    shutil.rmtree(run.iterations_path)
    shutil.rmtree(run.checkpoints_path)
    for version in (1, 2):
        shutil.rmtree(run.weights_path(version))
    return run


def manifest_path(run: RunDir, call: StageCall) -> Path:
    plan = read_run_plan(run, call.iteration, call.split)
    return shard_manifest_path(run, plan, call.stage, call.shard)


def manifests(run: RunDir) -> dict[str, Manifest]:
    """All manifests of the run, by path below the run folder."""
    found = [path for path in run.iterations_path.rglob("*.json") if path.name != "plan.json"]
    return {
        str(path.relative_to(run.root)): read_manifest(path) for path in sorted(found) if "superseded" not in path.parts
    }


def leftovers(run: RunDir) -> list[str]:
    """Files and folders that only an attempt at work has any use for."""
    return sorted(str(path.relative_to(run.root)) for path in _paths(run.root) if path.name.startswith(TEMPORARY))


def _paths(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in folders + files)

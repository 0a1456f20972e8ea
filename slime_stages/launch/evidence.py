"""What speaks for or against a task that ended badly: its log, how far it got, whether its inputs were there."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

from slime_stages.launch.chain_state import Chain, chain_header
from slime_stages.launch.memory_sizes import memory_sizes
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.queue import JobInfo
from slime_stages.slurm.requeue import progress_of
from slime_stages.slurm.verdicts import TaskRun
from slime_stages.stage import StageCall, read_config

CLOCK_SECONDS = 5.0
"""By how much the clocks of nodes and file servers may differ."""
LOG_BYTES = 4096


def with_evidence(task: TaskRun, run: RunDir, plan: Plan, chain: Chain) -> TaskRun:
    """An ended task with what its verdict may need; files are read only where it told nothing good itself."""
    attempt, info, end = task.attempt, task.info, task.end
    if end is not None and end.exit_code == 0:
        return task
    call = attempt.call(run, task.shard)
    ended = info.ended + CLOCK_SECONDS if info is not None and info.ended else inf
    return replace(
        task,
        progress=None if end is not None else progress_of(run, call, before=ended),
        inputs_ready=_inputs_ready(run, plan, call, info),
        log="" if attempt.job_id is None else last_lines(attempt.log_paths(task.shard)[1]),
        asked=chain_header(chain, attempt.stage).directives,
        sizes=memory_sizes(run, plan, read_config(run, plan.config_revision), attempt.stage),
    )


def _inputs_ready(run: RunDir, plan: Plan, call: StageCall, info: JobInfo | None) -> bool:
    """Whether all that the call reads was committed before its task began."""
    if info is None or info.started is None:
        return False
    try:
        return all(path.stat().st_mtime < info.started for path in _input_manifests(run, plan, call))
    except OSError:
        return False


def _input_manifests(run: RunDir, plan: Plan, call: StageCall) -> list[Path]:
    if call.stage == "rollout":
        version = plan.policy_version
        return [run.manifest_path("sync", version - 1)] if version else []
    if call.stage == "reward":
        return [shard_manifest_path(run, plan, "rollout", call.shard)]
    if call.stage == "sync":
        return [shard_manifest_path(run, plan, "train", None)]
    shards = range(plan.shard_count)
    return [shard_manifest_path(run, plan, stage, shard) for stage in ("rollout", "reward") for shard in shards]


def last_lines(path: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

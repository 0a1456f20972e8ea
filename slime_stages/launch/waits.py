"""How long jobs waited for their start and how long they worked, by what manifests and submissions say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import committed_at
from slime_stages.run.manifest import Manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import attempts_of

BEFORE = {"reward": "rollout", "train": "reward", "sync": "train"}
"""Stage → the one whose outputs it waits for."""


def run_times(manifests: Sequence[Manifest]) -> list[float]:
    """Seconds of every shard, as far as they are known."""
    return [unix_time(m.finished) - unix_time(m.started) for m in manifests if m.started]


def wall_seconds(manifests: Sequence[Manifest]) -> float | None:
    """Of all shards, added up; None if it is known of none."""
    times = run_times(manifests)
    return round(sum(times), 3) if times else None


def longest_waits(run: RunDir, plan: Plan, manifests: Mapping[str, Sequence[Manifest]]) -> dict[str, float]:
    """By stage, the longest time from when a job was submitted and its inputs were there until its work began."""
    waits = {}
    for stage, found in manifests.items():
        if not any(manifest.job for manifest in found):
            continue
        submitted = _submitted(run, plan, stage)
        ready = _generated_with(run, plan) if stage == "rollout" else _finished(manifests[BEFORE[stage]])
        known = [
            unix_time(manifest.started) - max(submitted[job], ready)
            for manifest in found
            if manifest.started and (job := job_of(manifest)) in submitted
        ]
        if known:
            waits[stage] = round(max(0.0, *known), 3)
    return waits


def job_of(manifest: Manifest) -> str | None:
    """Id of the job, or of the job array, that made an output; None where none did."""
    return manifest.job.get("SLURM_ARRAY_JOB_ID") or manifest.job.get("SLURM_JOB_ID")


def unix_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _submitted(run: RunDir, plan: Plan, stage: str) -> dict[str | None, float]:
    """Job → when it was submitted."""
    with suppress(SlimeStagesError):
        attempts = attempts_of(run, stage, plan.iteration, plan.split)
        return {attempt.job_id: attempt.submitted for attempt in attempts if attempt.submitted is not None}
    return {}


def _generated_with(run: RunDir, plan: Plan) -> float:
    """When the weights that generate were there."""
    with suppress(SlimeStagesError):
        if plan.policy_version:
            return unix_time(committed_at(run, "sync", plan.policy_version - 1).finished)
    return 0.0


def _finished(manifests: Sequence[Manifest]) -> float:
    return max((unix_time(manifest.finished) for manifest in manifests), default=0.0)

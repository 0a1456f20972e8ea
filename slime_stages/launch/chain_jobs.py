"""The jobs that a chain needs now: those of the iterations in its window, and evaluations of weights before it."""

from __future__ import annotations

from dataclasses import replace

from slime_stages.config import Config
from slime_stages.launch.chain_state import Chain
from slime_stages.launch.job_graph import JobKey, PlannedJob, evaluation_jobs, job_graph
from slime_stages.launch.plans import ensure_plan, evaluates
from slime_stages.launch.start_run import current_revision
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config

PAST_EVALUATIONS = 2
"""Versions before the first incomplete iteration whose evaluations are still seen to."""


def wanted_jobs(run: RunDir, chain: Chain, window: range) -> list[PlannedJob]:
    """The window's jobs, behind evaluations of weights that came out before it and may not be done."""
    config = read_config(run, current_revision(run))
    past = range(max(0, window.start - PAST_EVALUATIONS), window.start)
    jobs = [
        replace(job, depends_on=() if job.stage == "rollout" else job.depends_on)
        for version in past
        if evaluates(config, version) and run.weights_path(version).exists()
        for job in evaluation_jobs(run, version)
    ]
    if not window and config.eval.eval_interval is not None:
        return [*jobs, *evaluation_jobs(run, window.start)]
    for iteration in range(window.start, min(chain.target, window.stop + _ahead(config))):
        ensure_plan(run, iteration)  # it says which weights to wait for
    graph = job_graph(run, window, final=window.stop == chain.target)
    return [*jobs, *(_alone(job) if config.serving.serving_mode != "job" else job for job in graph)]


def _ahead(config: Config) -> int:
    """Iterations beyond the window that a stream may get to before anybody looks again."""
    return config.rollout.staleness + 2 if config.rollout.rollout_streaming else 0


def _alone(job: PlannedJob) -> PlannedJob:
    """Engines that all jobs share serve one version of the weights at a time: one iteration after the other."""
    if job.stage != "rollout" or job.split != "train" or job.iteration == 0:
        return job
    return replace(job, depends_on=(*job.depends_on, JobKey("rollout", job.iteration - 1)))

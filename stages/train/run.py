"""Train stage: a gate, the optimizer steps of one iteration, a checkpoint, and what became of every sample."""

from __future__ import annotations

from pathlib import Path

from slime_stages.commit import remove_leftovers
from slime_stages.lineage import shard_manifest_path, train_inputs
from slime_stages.rundir import RunDir
from slime_stages.stage import Stage, StageCall, config_digest, open_stage, read_config, read_run_plan
from slime_stages.weights.folders import remove_dead_folders
from slime_stages.weights.outputs import check_outputs


def run(call: StageCall) -> Path:
    """Train iteration `call.iteration`; returns the path of its manifest.

    With more than one trainer process this one starts them and waits; each runs `train` below.
    """
    stage = prepare(call)
    if stage is None:
        return shard_manifest_path(RunDir(call.run), read_run_plan(RunDir(call.run), call.iteration), "train", None)
    if stage.config.train.process_count == 1:
        return train(stage)
    from stages.train.processes import run_processes

    return run_processes(stage)


def prepare(call: StageCall) -> Stage | None:
    """Open the call; None if its output is committed and fresh."""
    stage = worker_stage(call)
    remove_dead_folders(stage.run.checkpoints_path)
    remove_leftovers(stage.run.checkpoints_path)
    return open_stage(
        call, stage.inputs, plan=stage.plan, config=stage.config, path=stage.manifest_path, check=check_outputs
    )


def worker_stage(call: StageCall) -> Stage:
    """The call as it stands, for a process whose parent has opened it."""
    run_dir = RunDir(call.run)
    plan = read_run_plan(run_dir, call.iteration)
    config = read_config(run_dir, plan.config_revision)
    return Stage(
        call=call,
        run=run_dir,
        plan=plan,
        config=config,
        manifest_path=shard_manifest_path(run_dir, plan, "train", None),
        inputs=train_inputs(run_dir, plan),
        config_digest=config_digest(config, call),
    )


def train(stage: Stage) -> Path:
    """What every trainer process does; the first one also writes and commits."""
    from stages.train.batch import read_iteration
    from stages.train.gate import check_log_probs, check_samples
    from stages.train.policy import load_policy, save_policy
    from stages.train.report import commit_training, probs_diff
    from stages.train.steps import train_steps

    plan, config = stage.plan, stage.config
    with stage.timed("read"):
        data = read_iteration(stage.run, plan, config)
        check_samples(data, plan, config)
    with stage.timed("load"):
        trainer = load_policy(stage)
    with stage.timed("steps"):
        steps = train_steps(trainer, data, config, title=stage.call.title)
    check_log_probs(probs_diff(steps), plan, config)
    with stage.timed("save"):
        saved = save_policy(stage, trainer, data)
    return commit_training(stage, data, steps, saved)

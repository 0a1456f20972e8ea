"""Train stage: a gate, the optimizer steps of one iteration, a checkpoint, and what became of every sample."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slime_stages.config.roles import CRITIC
from slime_stages.drain import listening
from slime_stages.lineage import shard_manifest_path, train_inputs
from slime_stages.run.acceptance import accepted
from slime_stages.run.claims import end_claimed
from slime_stages.run.commit import remove_leftovers
from slime_stages.run.rundir import RunDir
from slime_stages.stage import Stage, StageCall, config_digest, open_stage, read_config, read_run_plan
from slime_stages.weights.checkpoints import critic_checkpoints
from slime_stages.weights.folders import remove_dead_folders
from slime_stages.weights.outputs import check_outputs
from slime_stages.weights.partial import discard_partial, partial_folder
from stages.train.ranks import Ranks
from stages.train.slurm import check_process_count, remove_old_folders, slurm_ranks


def run(call: StageCall) -> Path:
    """Train iteration `call.iteration`; returns the path of its manifest.

    One of several tasks of a SLURM job trains together with the others. Elsewhere, with more than one trainer process
    in the config, this one starts them and waits.
    """
    if (ranks := slurm_ranks(call)) is not None:
        return train_together(call, ranks, first=prepare)
    stage = prepare(call)
    if stage is None:
        return _manifest_path(call)
    if stage.config.train.process_count == 1:
        return train(stage)
    from stages.train.processes import run_processes

    return run_processes(stage)


def train_together(call: StageCall, ranks: Ranks, *, first: Callable[[StageCall], Stage | None]) -> Path:
    """What each of several processes does. The first one opens the call for all, by `first`: None is nothing to do."""
    with ranks.sharing_errors():
        if ranks.is_first:
            opened = first(call)
            ranks.invite(is_needed=opened is not None)
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is for the manifest's path, once
            opened = worker_stage(call) if ranks.is_invited() else None
        if opened is not None:
            ranks.join()
            train(opened)
            ranks.leave()
    return _manifest_path(call)


def prepare(call: StageCall) -> Stage | None:
    """Open the call; None if its output is committed and fresh."""
    stage = worker_stage(call)
    check_process_count(stage.config.train)
    remove_old_folders(stage.manifest_path.parent)
    end_claimed(stage.manifest_path)  # before its folder goes as a dead attempt's
    for folder in (stage.run.checkpoints_path, critic_checkpoints(stage.run.checkpoints_path)):
        remove_dead_folders(folder)
        remove_leftovers(folder)
    if stage.manifest_path.exists():
        discard_partial(partial_folder(stage.run, call.iteration))
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
    from stages.train.critic import load_critic
    from stages.train.gate import Gate, admit, check_log_probs
    from stages.train.partial import load_partial, save_partial
    from stages.train.performance import performance
    from stages.train.policy import load_policy, save_policy, trainer_settings
    from stages.train.report import commit_training, probs_diff
    from stages.train.steps import train_steps
    from stages.train.stopping import Stopping

    plan, config = stage.plan, stage.config
    with stage.timed("read"):
        data = read_iteration(stage.run, plan, config)
        gate = Gate(plan=plan, config=config, accepted=accepted(stage.run, plan.iteration))
        config = admit(data, gate, stage.run.weights_path(0))
    with stage.timed("load"):
        trainer, sampler_gap = load_policy(stage, data)
        critic = load_critic(stage, trainer_settings(stage.config, CRITIC))
        taken = load_partial(stage, trainer, critic)
    with listening(lambda: None):  # signals are looked at between steps; after the last one, committing is the way out
        with stage.timed("steps"):
            stopping = Stopping(save_seconds=2 * stage.seconds["load"])
            steps = train_steps(
                trainer,
                data,
                config,
                title=stage.call.title,
                iteration=plan.iteration,
                critic=critic,
                taken=taken,
                should_stop=stopping,
            )
        if not steps.are_complete:
            save_partial(stage, trainer, critic, steps)
        check_log_probs(sampler_gap if plan.staleness > 0 else probs_diff(steps), gate)
        with stage.timed("save"):
            saved = save_policy(stage, trainer, critic, data)
        figures = performance(stage, data, steps, trainer.config)
        return commit_training(stage, data, steps, saved, sampler_gap, figures=figures, accepted=gate.passed)


def _manifest_path(call: StageCall) -> Path:
    return shard_manifest_path(RunDir(call.run), read_run_plan(RunDir(call.run), call.iteration), "train", None)

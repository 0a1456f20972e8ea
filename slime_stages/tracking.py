"""Metrics for TensorBoard and Weights & Biases, beside the lines in RUN/metrics, from which all of them can be had.

Whoever adds a line tells of it here, once an iteration. What goes wrong here costs nothing but a warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime_stages.config import Config
from slime_stages.config.sections.tracking import Tracking
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import say

PROJECT = "slime-stages"


def track(run: RunDir, plan: Plan, config: Config, metrics: Mapping[str, float | None]) -> None:
    """Tell of an iteration's metrics wherever the config wants them."""
    tracking = config.tracking
    if not (tracking.use_tensorboard or tracking.use_wandb):
        return
    known = {name: float(value) for name, value in metrics.items() if value is not None}
    step = plan.iteration * (config.steps_per_iteration if tracking.wandb_always_use_train_step else 1)
    for is_wanted, write in ((tracking.use_tensorboard, _to_tensorboard), (tracking.use_wandb, _to_wandb)):
        try:
            if is_wanted:
                write(run, config, known, step)
        except Exception as error:  # a server, a disk or a package that is not there
            say(f"warning: metrics of iteration {plan.iteration} are in RUN/metrics only: {error!r}")


def tensorboard_folder(run: RunDir, tracking: Tracking) -> Path:
    """Where the events are."""
    root = Path(os.environ.get("TENSORBOARD_DIR", run.root / "tensorboard"))
    if tracking.tb_project_name is None and tracking.tb_experiment_name is None:
        return root
    return root / (tracking.tb_project_name or ".") / (tracking.tb_experiment_name or run.root.name)


def _to_tensorboard(run: RunDir, config: Config, metrics: Mapping[str, float], step: int) -> None:
    from tensorboard.summary import Writer

    writer = Writer(str(tensorboard_folder(run, config.tracking)))
    for name, value in metrics.items():
        writer.add_scalar(name, value, step)
    writer.close()


def _to_wandb(run: RunDir, config: Config, metrics: Mapping[str, float], step: int) -> None:
    """Every call goes on with the one run; the step is a metric, since stages do not tell of theirs in order."""
    import wandb

    tracking = config.tracking
    if tracking.wandb_host is not None:
        os.environ.setdefault("WANDB_BASE_URL", tracking.wandb_host)
    settings: dict[str, Any] = {**config.flat(), "SLURM_JOB_ID": os.environ.get("SLURM_JOB_ID")}
    logged = wandb.init(
        project=tracking.wandb_project or PROJECT,
        entity=tracking.wandb_team,
        group=tracking.wandb_group,
        name=run.root.name,
        id=tracking.wandb_run_id or run.run_id(),
        resume="allow",
        mode=os.environ.get("WANDB_MODE", tracking.wandb_mode),
        dir=tracking.wandb_dir or str(run.root),
        config=settings,
    )
    for prefix in dict.fromkeys(name.partition("/")[0] for name in metrics):
        logged.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
    steps = {f"{name.partition('/')[0]}/step": step for name in metrics}
    logged.log({**metrics, **steps})
    logged.finish()

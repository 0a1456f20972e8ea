"""[tracking]: where metrics go besides RUN/metrics."""

from __future__ import annotations

from typing import ClassVar, Literal

from slime_stages.config.types import LocalPath, Section


class Tracking(Section):
    title: ClassVar[str] = "where metrics go besides RUN/metrics"

    use_tensorboard: bool = False
    """Write events for TensorBoard, below `RUN/tensorboard` or the folder that TENSORBOARD_DIR names."""

    tb_project_name: str | None = None
    """Folder of the events below that one."""

    tb_experiment_name: str | None = None
    """Folder below `tb_project_name`; the run's name without it."""

    use_wandb: bool = False
    """Log to Weights & Biases, which is to be installed."""

    wandb_mode: Literal["online", "offline", "disabled"] = "offline"
    """Offline: into a folder, for `wandb sync`. Online asks for a net on the nodes, and for WANDB_API_KEY."""

    wandb_project: str | None = None
    """Project; `slime-stages` without it."""

    wandb_group: str | None = None
    """Group of the run in the project."""

    wandb_team: str | None = None
    """Entity that the project belongs to."""

    wandb_host: str | None = None
    """Address of a server of your own."""

    wandb_dir: LocalPath | None = None
    """Folder in which it makes its folder `wandb`; the run's without it."""

    wandb_run_id: str | None = None
    """Its name of the run; the run's own id without it."""

    wandb_always_use_train_step: bool = False
    """Count optimizer steps on the axis, not iterations."""

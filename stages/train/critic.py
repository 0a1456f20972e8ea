"""The critic of ppo: a second model with its own optimizer and checkpoints, trained before the policy's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import command, committed_at
from slime_stages.stage import Stage
from slime_stages.weights.checkpoints import CRITIC_CONTENT, check_content, critic_checkpoints, iteration_folder
from stages.train.algorithm.conversion import TrainBatch
from stages.train.algorithm.losses import value_loss
from stages.train.algorithm.reducers import weighted_sum
from stages.train.megatron import checkpoint
from stages.train.megatron.optimizer_state import reset_optimizer_state
from stages.train.megatron.packing import PackedLater, PackedMicroBatch
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import StepResult, Trainer
from stages.train.micro_batch import packed_sample


def load_critic(stage: Stage, settings: TrainerSettings) -> Trainer | None:
    """As the iteration before left it; at the beginning, the first policy's transformer. None without ppo."""
    if not stage.config.algorithm.uses_critic:
        return None
    from stages.train.megatron.value_model import value_model

    version, folder = stage.plan.start_version, critic_checkpoints(stage.run.checkpoints_path)
    trainer = Trainer(stage.run.weights_path(0), settings, load_weights=version == 0, provider=value_model)
    if version > 0:
        content = committed_at(stage.run, "train", version - 1).outputs.get(CRITIC_CONTENT, "")
        try:
            check_content(iteration_folder(folder, version), content)
            checkpoint.load(trainer, folder, version)
        except SlimeStagesError as error:
            error.hint = command(stage.run, "train", version - 1, None, force=True)
            raise
    if stage.config.optimizer.reset_optimizer_states:
        reset_optimizer_state(trainer.optimizer)
    return trainer


def values_of(trainer: Trainer, batch: TrainBatch, micro_batches: list[list[int]]) -> dict[int, NDArray[np.float32]]:
    """[R] by position: what the critic thinks is still to come, before each response token."""
    blank = {p: np.zeros(int(length), np.float32) for p, length in enumerate(batch.response_lengths)}
    with_response = [[p for p in positions if len(blank[p])] for positions in micro_batches]
    chosen = [positions for positions in with_response if positions]
    packed = PackedLater([[packed_sample(batch, p, blank[p]) for p in positions] for positions in chosen])
    found: dict[int, NDArray[np.float32]] = {}
    for positions, values in zip(chosen, trainer.values(packed), strict=True):
        parts = np.split(values.cpu().numpy(), np.cumsum(batch.response_lengths[positions])[:-1])
        found |= dict(zip(positions, parts, strict=True))
    return found


@dataclass(slots=True, kw_only=True)
class ValueObjective:
    """A `LossFunction` on values [N, 1]."""

    config: Config = field(repr=False)

    def __call__(
        self, micro_batch: PackedMicroBatch, values: Tensor, entropies: Tensor | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        columns: dict[str, Any] = {
            name: torch.from_numpy(micro_batch.columns[name]).to(values.device)
            for name in ("values", "returns", "weight")
        }
        loss, clipped = value_loss(
            values.squeeze(-1), columns["values"], columns["returns"], value_clip=self.config.algorithm.value_clip
        )
        total = weighted_sum(loss, columns["weight"])
        return total, {"value_loss": total.detach(), "value_clipfrac": weighted_sum(clipped, columns["weight"])}


def critic_metrics(results: list[StepResult]) -> dict[str, float]:
    """Means over the critic's steps, under slime's keys."""
    if not results:
        return {}
    names = ("value_loss", "value_clipfrac")
    means = {name: float(np.mean([result.metrics.get(name, 0.0) for result in results])) for name in names}
    means["grad_norm"] = float(np.mean([result.grad_norm for result in results]))
    return {f"train/critic-{name}": value for name, value in {**means, "lr-pg_0": results[-1].lr}.items()}

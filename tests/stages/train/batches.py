"""Iterations for a trainer of a tiny model: four prompts of two rollouts, one of which fanned out into two samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from slime_stages.config import Config
from slime_stages.data.sample_table import samples_table
from slime_stages.sample import Sample, Status
from stages.train.batch import IterationBatch, batch_of
from stages.train.megatron.packing import PackedSample, pack_samples
from stages.train.megatron.step import Trainer
from stages.train.megatron.value_model import value_model
from stages.train.policy import trainer_settings
from stages.train.prepare import REFERENCE
from stages.train.steps import Steps, train_steps
from tests.slime_stages.config.settings import resolved

VOCABULARY = 96
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.25, 1.0, 0.0, 0.5, 0.5]
ROLLOUTS = [0, 1, 2, 3, 4, 4, 5, 6, 7]
"""Samples 4 and 5 are one rollout; 3 has no token that is trained on."""


def settings(**more: Any) -> Config:
    """One step of all 8 rollouts unless told otherwise."""
    common = {"rollout_batch_size": 4, "n_samples_per_prompt": 2, "lr": 1e-3, "clip_grad": 0.0}
    return resolved(**{**common, **more}).config


def trainer_of(model: Path, config: Config) -> Trainer:
    """With a reference that differs from the policy, where the config asks for one."""
    trainer = Trainer(model, trainer_settings(config))
    if config.algorithm.needs_reference:
        keep_shifted(trainer, REFERENCE, seed=5)
    return trainer


@torch.no_grad()
def keep_shifted(trainer: Trainer, name: str, *, seed: int) -> None:
    """Keep a copy of the weights with some noise on them; the trainer's own stay."""
    trainer.copies.keep("before")
    generator = torch.Generator().manual_seed(seed)
    for parameter in trainer.model.module.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    trainer.copies.keep(name)
    trainer.copies._fill("before")


def samples(trainer: Trainer, **attributes: Any) -> list[Sample]:
    """Of the trainer's policy, as an engine saw them that is a little off."""
    random = np.random.default_rng(3)
    made = []
    for index, rollout in enumerate(ROLLOUTS):
        prompt = np.random.default_rng(rollout // 2).integers(0, VOCABULARY, 4 + rollout // 2)
        response = random.integers(0, VOCABULARY, 2 + index % 5)
        packed = PackedSample(tokens=np.concatenate([prompt, response]), response_length=len(response))
        [log_probs] = trainer.log_probs([pack_samples([packed])])
        sample = Sample(index=index, group_index=rollout // 2, rollout_id=rollout, tokens=prompt.tolist())
        noise = 0.4 * random.standard_normal(len(response))
        sample.append_response_tokens(
            None, tokens=response.tolist(), log_probs=(log_probs.numpy() + noise).tolist(), text=""
        )
        sample.teacher_log_probs = (log_probs.numpy() + 0.3).tolist()
        sample.loss_mask = [0] * len(response) if index == 3 else [1, 0, *[1] * (len(response) - 2)]
        sample.status = Status.COMPLETED
        for name, values in attributes.items():
            setattr(sample, name, values[index])
        made.append(sample)
    return made


def iteration(trainer: Trainer, config: Config, **attributes: Any) -> IterationBatch:
    table = samples_table(samples(trainer, **attributes), iteration=0, shard=0)
    table = table.drop_columns(["reward", "reward_parts"])
    table = table.append_column("reward", pa.array(REWARDS, pa.float64()))
    return batch_of(table.append_column("reward_parts", pa.nulls(len(table), pa.string())), config)


def train(model: Path, config: Config, **attributes: Any) -> tuple[Trainer, Steps]:
    trainer = trainer_of(model, config)
    critic = Trainer(model, trainer.settings, provider=value_model) if config.algorithm.uses_critic else None
    data = iteration(trainer, config, **attributes)
    return trainer, train_steps(trainer, data, config, title="train 0", critic=critic)

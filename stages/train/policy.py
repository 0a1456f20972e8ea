"""The policy on its way through training: loaded from the checkpoint of its version, saved as the next one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed
import xxhash

from slime_stages.config import Config
from slime_stages.config.roles import ACTOR, with_role
from slime_stages.errors import InternalError, MissingInputError, SlimeStagesError
from slime_stages.lineage import command
from slime_stages.stage import BACKGROUND_VARIABLE, Stage
from slime_stages.weights.checkpoints import check_content, critic_checkpoints, is_complete, iteration_folder
from slime_stages.weights.folders import has_live_writer
from stages.train.batch import IterationBatch
from stages.train.hooks import Hooks
from stages.train.megatron import checkpoint, parallel
from stages.train.megatron.optimizer_state import reset_optimizer_state
from stages.train.megatron.packing import PackedSample, pack_samples
from stages.train.megatron.pending_save import PendingSave
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import Trainer
from stages.train.other_models import OtherModels
from stages.train.sampler import sampler_probs_diff, sampler_weights

CHECKPOINT_WAIT_SECONDS = 600.0
PROBE_COUNT, PROBE_TOKENS = 4, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """What training made of the policy."""

    version: int
    content: str
    """Digest of all parameters."""
    probes: list[dict[str, Any]]
    """A few sequences with the trained model's log-probs, for whoever publishes its weights to check them by."""
    checkpoint: PendingSave
    """Of the trained policy: in its place once the training is committed, and only that of the attempt that won."""
    critic: PendingSave | None
    """Likewise, whole already."""
    critic_content: str
    """Digest of the critic's parameters; empty without one."""


def load_policy(stage: Stage, data: IterationBatch) -> tuple[Trainer, float | None]:
    """The trainer as the iteration before left it; at the beginning, with the weights that the run began with.

    With it the gap between engine and trainer, if the samples come from older weights that are still kept.
    """
    config, version, sampler = stage.config, stage.plan.start_version, sampler_weights(stage)
    settings, hooks = trainer_settings(config), Hooks(config)
    parallel.initialize(settings)
    hooks.megatron_is_ready()
    if version > 0:
        _wait_for_checkpoint(stage, version)
    others = OtherModels(stage=stage, sampler=sampler)
    folder = sampler or stage.run.weights_path(0)
    is_used = version == 0 or sampler is not None or others.begin_with_first
    trainer = Trainer(folder, settings, load_weights=is_used, provider=hooks.find("custom_model_provider_path"))
    is_comparable = stage.plan.staleness > 0 and on_all_ranks(sampler is not None)
    gap = sampler_probs_diff(trainer, data) if is_comparable else None
    others.keep(trainer)
    if version > 0:
        try:
            check_content(iteration_folder(stage.run.checkpoints_path, version), stage.inputs["policy"])
            checkpoint.load(trainer, stage.run.checkpoints_path, version)
        except SlimeStagesError as error:
            error.hint = command(stage.run, "train", version - 1, None, force=True)
            raise
    others.keep_policy(trainer)
    if config.optimizer.reset_optimizer_states:
        reset_optimizer_state(trainer.optimizer)
    return trainer, gap


def save_policy(stage: Stage, trainer: Trainer, critic: Trainer | None, data: IterationBatch) -> SavedPolicy:
    """Write the next version's checkpoint. Where processes may outlive their stage, the optimizer's part follows."""
    version, saved_critic, critic_content = stage.plan.trained_version, None, ""
    if critic is not None:
        folder, critic_content = critic_checkpoints(stage.run.checkpoints_path), parameter_digest(critic)
        saved_critic = checkpoint.save(critic, folder, version, background=False)
        saved_critic.prepare(critic_content, whole=True)
    background = stage.config.checkpoint.async_save
    pending = checkpoint.save(trainer, stage.run.checkpoints_path, version, background=background)
    content = parameter_digest(trainer)
    probes = probe(trainer, choose_probes(data))
    follows = background and os.environ.get(BACKGROUND_VARIABLE) and torch.distributed.get_world_size() == 1
    pending.prepare(content, whole=not follows)
    return SavedPolicy(
        version=version,
        content=content,
        probes=probes,
        checkpoint=pending,
        critic=saved_critic,
        critic_content=critic_content,
    )


def trainer_settings(config: Config, role: str = ACTOR) -> TrainerSettings:
    """The trainer's settings; its schedule counts rollouts, ours optimizer steps."""
    config = with_role(config, role)
    optimizer, train, unit = config.optimizer, config.train, config.global_batch_size
    warmup, steps = optimizer.lr_warmup_iters, config.decay_steps
    if steps is None or optimizer.lr_decay_style == "constant":
        steps = warmup + 1  # nothing decays, and Megatron wants more than the warm-up
    values = {name: getattr(train, name) for name in TrainerSettings.__dataclass_fields__ if hasattr(train, name)}
    if role != ACTOR:
        values |= {"mtp_num_layers": None, "enable_mtp_training": False}
    return TrainerSettings(
        **values,
        dtype="bfloat16" if train.bf16 else "float32",
        lr=optimizer.lr,
        min_lr=optimizer.min_lr,
        lr_warmup_steps=warmup * unit,
        lr_decay_steps=steps * unit,
        lr_decay_style=optimizer.lr_decay_style,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.adam_beta1,
        adam_beta2=optimizer.adam_beta2,
        adam_eps=optimizer.adam_eps,
        clip_grad=optimizer.clip_grad,
        rollout_temperature=config.rollout.rollout_temperature,
    )


def on_all_ranks(value: bool) -> bool:
    """Whether it is true on each; they may not see the same files."""
    values = [False] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return all(values)


def parameter_digest(trainer: Trainer) -> str:
    """xxh3-128 over the parameters of all ranks, in the order of their names."""
    state = xxhash.xxh3_128()
    for name, parameter in sorted(trainer.named_parameters()):
        state.update(name.encode())
        state.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    digests: list[str] = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(digests, state.hexdigest())
    return xxhash.xxh3_128_hexdigest("".join(digests).encode()) if len(digests) > 1 else digests[0]


def choose_probes(data: IterationBatch) -> list[PackedSample]:
    """The first few samples that have a response, cut to a length that is quick to check."""
    lengths, prompts = data.batch.response_lengths, data.batch.total_lengths - data.batch.response_lengths
    chosen = np.flatnonzero((lengths > 0) & (prompts < PROBE_TOKENS))[:PROBE_COUNT].tolist()
    batch, probes = data.with_rows(chosen), []
    for position in chosen:
        cut = np.asarray(batch.tokens[position][:PROBE_TOKENS], np.int64)
        probes.append(PackedSample(tokens=cut, response_length=len(cut) - int(prompts[position])))
    return probes


def probe(trainer: Trainer, chosen: list[PackedSample]) -> list[dict[str, Any]]:
    """The sequences with the trained model's log-probs; all ranks call it."""
    if not chosen:
        return []
    [together] = trainer.log_probs([pack_samples(chosen)])
    ends = np.cumsum([sample.response_length for sample in chosen])[:-1]
    log_probs = np.split(together.double().cpu().numpy(), ends)
    return [
        {
            "tokens": sample.tokens.tolist(),
            "response_length": sample.response_length,
            "temperature": trainer.settings.rollout_temperature,
            "log_probs": [round(value, 7) for value in values.tolist()],
        }
        for sample, values in zip(chosen, log_probs, strict=True)
    ]


def _wait_for_checkpoint(stage: Stage, version: int) -> None:
    """The optimizer's part of the last checkpoint may still be on its way to the disk."""
    folder = iteration_folder(stage.run.checkpoints_path, version)
    deadline = time.monotonic() + CHECKPOINT_WAIT_SECONDS
    while not is_complete(folder):
        if not has_live_writer(folder):
            if is_complete(folder):
                return
            raise MissingInputError(
                f"checkpoint {folder} is not whole: the process that wrote it is gone",
                hint=command(stage.run, "train", version - 1, None, force=True),
            )
        if time.monotonic() > deadline:
            raise InternalError(f"checkpoint {folder} was not written within {CHECKPOINT_WAIT_SECONDS:.0f} s")
        time.sleep(0.1)

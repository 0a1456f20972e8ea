"""Run under torchrun with two processes, or alone: trains, saves, resumes, and writes what came out."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as distributed
from safetensors.torch import save_file

from stages.train.megatron import checkpoint
from stages.train.megatron.packing import pack_samples
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.groups import leave_groups
from tests.stages.train.megatron.tiny_models import SETTINGS, make_samples, weighted_loss
from tests.stages.train.megatron.two_ranks import OVERLAPPED, gather_weights, same_on_both_ranks, uneven_halves

TENSOR_PARALLEL = replace(SETTINGS, tensor_model_parallel_size=2)
PIPELINE_PARALLEL = replace(SETTINGS, pipeline_model_parallel_size=2)
DISTRIBUTED_OPTIMIZER = replace(SETTINGS, use_distributed_optimizer=True, megatron=OVERLAPPED)
"""With many buckets, and padding behind them."""
MTP = replace(SETTINGS, mtp_num_layers=2, enable_mtp_training=True)
MTP_LAYOUTS = {
    "tensor-parallel": replace(MTP, tensor_model_parallel_size=2, sequence_parallel=True),
    "pipeline-parallel": replace(MTP, pipeline_model_parallel_size=2),
    "overlapped": replace(MTP, use_distributed_optimizer=True, megatron={"overlap_grad_reduce": True}),
}
"""Layers for multi-token prediction where something else about them is special."""


def train(trainer: Trainer, steps: range) -> None:
    """The same three groups of samples whatever the number of ranks."""
    for step in steps:
        if distributed.get_world_size() == 1:
            batches = [pack_samples(make_samples(step, shared=True))]
        elif trainer.data_parallel_size == 1:
            batches = same_on_both_ranks(step, 0)
        else:
            batches = uneven_halves(step, trainer.data_parallel_rank)
        trainer.train_step(batches, weighted_loss)


def write_weights(trainer: Trainer, model: Path, path: Path) -> None:
    weights = gather_weights(trainer, model)
    if distributed.get_rank() == 0:
        save_file(weights, path)


def save_and_resume(model: Path, output: Path, name: str, settings: TrainerSettings) -> None:
    """Three steps, a save in the background of three more; then the same three again from the checkpoint."""
    leave_groups()
    trainer = Trainer(model, settings)
    train(trainer, range(3))
    write_weights(trainer, model, output / f"{name}-saved.safetensors")
    torch.rand(distributed.get_rank() + 3)  # so that the generators are not as they were made
    if distributed.get_rank() == 0:
        save_file({"state": torch.get_rng_state()}, output / f"{name}-generator.safetensors")
    pending = checkpoint.save(trainer, output / name, 3, background=True)
    train(trainer, range(3, 6))
    pending.wait()
    write_weights(trainer, model, output / f"{name}-straight.safetensors")

    trainer = Trainer(model, settings)
    checkpoint.load(trainer, output / name, 3)
    train(trainer, range(3, 6))
    write_weights(trainer, model, output / f"{name}-resumed.safetensors")


def reshard(model: Path, output: Path) -> None:
    """Two pipeline stages go on where two tensor-parallel ranks stopped, and save in turn."""
    leave_groups()
    trainer = Trainer(model, PIPELINE_PARALLEL)
    checkpoint.load(trainer, output / "tensor-parallel", 3)
    train(trainer, range(3, 6))
    write_weights(trainer, model, output / "resharded.safetensors")
    checkpoint.save(trainer, output / "pipeline-parallel", 6, background=False).wait()


def resume(model: Path, output: Path) -> None:
    trainer = Trainer(model, SETTINGS)
    checkpoint.load(trainer, output, 3)
    train(trainer, range(3, 6))
    write_weights(trainer, model, output / "resumed.safetensors")


def die_while_saving(model: Path, output: Path, *, with_weights: bool) -> None:
    trainer = Trainer(model, SETTINGS)
    pending = checkpoint.save(trainer, output, 4, background=True)
    if with_weights:
        pending.wait_for_weights()
    os.kill(os.getpid(), signal.SIGKILL)


def main(action: str, model: Path, output: Path) -> None:
    if action == "two-ranks":
        save_and_resume(model, output, "distributed-optimizer", DISTRIBUTED_OPTIMIZER)
        save_and_resume(model, output, "tensor-parallel", TENSOR_PARALLEL)
        reshard(model, output)
        distributed.destroy_process_group()
    elif action == "mtp":
        for name, settings in MTP_LAYOUTS.items():
            save_and_resume(model, output, name, settings)
        distributed.destroy_process_group()
    elif action == "resume":
        resume(model, output)
    else:
        die_while_saving(model, output, with_weights=action == "die-with-weights")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

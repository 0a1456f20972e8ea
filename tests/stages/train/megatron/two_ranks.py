"""Run under torchrun with two processes: trains every case, and writes what came out, under Hugging Face names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as distributed
from safetensors.torch import save_file
from torch import Tensor

from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout
from slime_stages.weights.mapping.tensors import to_huggingface
from stages.train.megatron.packing import PackedMicroBatch, pack_samples
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.tiny_models import SETTINGS, make_samples, weighted_loss

STEPS = 3


def same_on_both_ranks(seed: int, rank: int) -> list[PackedMicroBatch]:
    samples = make_samples(seed, shared=True)
    return [pack_samples(samples[:4]), pack_samples(samples[4:])]


def uneven_halves(seed: int, rank: int) -> list[PackedMicroBatch]:
    samples = make_samples(seed, shared=True)
    return [pack_samples(samples[:2]), pack_samples(samples[2:6])] if rank == 0 else [pack_samples(samples[6:])]


def all_on_the_first_rank(seed: int, rank: int) -> list[PackedMicroBatch]:
    return [pack_samples(make_samples(seed, shared=True))] if rank == 0 else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    kind: str
    settings: TrainerSettings
    micro_batches: Callable[[int, int], list[PackedMicroBatch]]


TENSOR_PARALLEL = replace(SETTINGS, tensor_model_parallel_size=2)
CASES = (
    *(
        Case(name=f"tp2-{kind}", kind=kind, settings=TENSOR_PARALLEL, micro_batches=same_on_both_ranks)
        for kind in ("llama", "qwen2", "qwen3")
    ),
    Case(name="dp2-llama", kind="llama", settings=SETTINGS, micro_batches=uneven_halves),
    Case(
        name="dp2-distributed-optimizer-qwen3",
        kind="qwen3",
        settings=replace(SETTINGS, use_distributed_optimizer=True),
        micro_batches=uneven_halves,
    ),
    Case(name="dp2-empty-rank-qwen2", kind="qwen2", settings=SETTINGS, micro_batches=all_on_the_first_rank),
)


def gather_weights(trainer: Trainer, folder: Path) -> dict[str, Tensor]:
    from megatron.core import parallel_state

    layout = weight_layout(read_huggingface_config(folder))
    group = parallel_state.get_tensor_model_parallel_group()
    weights: dict[str, Tensor] = {}
    for name, parameter in trainer.model.module.named_parameters():
        shards = [torch.empty_like(parameter) for _ in range(group.size())]
        distributed.all_gather(shards, parameter.detach().contiguous(), group=group)
        weights.update(to_huggingface(name, shards, layout))
    return {name: tensor.clone().contiguous() for name, tensor in weights.items()}


def entropy_gradient(trainer: Trainer) -> float:
    """The gradient norm of a loss with entropies, which then crosses vocabulary shards."""
    return trainer.train_step([pack_samples(make_samples(9, shared=True))], weighted_loss, entropy="gradient").grad_norm


def run_case(case: Case, models: Path, output: Path) -> None:
    from megatron.core import parallel_state

    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    folder = models / case.kind
    trainer = Trainer(folder, case.settings)
    results = [
        trainer.train_step(case.micro_batches(step, trainer.data_parallel_rank), weighted_loss) for step in range(STEPS)
    ]
    weights = gather_weights(trainer, folder)
    log_probs = trainer.log_probs([pack_samples(make_samples(8, shared=True))])[0]
    with_entropy = entropy_gradient(trainer) if case.settings.tensor_model_parallel_size == 2 else None
    rank = distributed.get_rank()
    save_file(weights | {"log_probs": log_probs}, output / f"{case.name}-rank{rank}.safetensors")
    report = {"steps": [asdict(each) for each in results], "entropy_grad_norm": with_entropy}
    (output / f"{case.name}-rank{rank}.json").write_text(json.dumps(report))


def main(models: Path, output: Path) -> None:
    for case in CASES:
        run_case(case, models, output)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

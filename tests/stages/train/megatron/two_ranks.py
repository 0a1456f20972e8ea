"""Run under torchrun with two processes: trains every case, and writes what came out, under Hugging Face names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from safetensors.torch import save_file
from torch import Tensor

from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout
from slime_stages.weights.mapping.tensors import to_huggingface
from stages.train.megatron.packing import PackedMicroBatch, pack_samples
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.groups import leave_groups
from tests.stages.train.megatron.tiny_models import (
    DENSE,
    MIXTURES,
    MODELS,
    SETTINGS,
    make_samples,
    weighted_loss,
    with_nuclei,
)

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


TENSOR = replace(SETTINGS, tensor_model_parallel_size=2)
SEQUENCE = replace(TENSOR, sequence_parallel=True)
PIPELINE = replace(SETTINGS, pipeline_model_parallel_size=2)
VIRTUAL = replace(PIPELINE, num_layers_per_virtual_pipeline_stage=1)
CONTEXT = replace(SETTINGS, context_parallel_size=2)
EXPERT = replace(SETTINGS, expert_model_parallel_size=2)
SPLIT_EXPERTS = replace(SEQUENCE, expert_tensor_parallel_size=1, expert_model_parallel_size=2)

OVERLAPPED = {"overlap_grad_reduce": True, "bucket_size": 1000}


def case(layout: str, kind: str, settings: TrainerSettings, **changes: Any) -> Case:
    is_replicated = settings in (SETTINGS, EXPERT)
    micro_batches = uneven_halves if is_replicated else same_on_both_ranks
    return Case(name=f"{layout}-{kind}", kind=kind, settings=replace(settings, **changes), micro_batches=micro_batches)


CASES = (
    *(case("tp2", kind, TENSOR) for kind in DENSE),
    *(case("tp2-sp", kind, SEQUENCE) for kind in ("llama", "qwen3", *MIXTURES)),
    *(case("pp2", kind, PIPELINE) for kind in MODELS),
    *(case("pp2-vpp", kind, VIRTUAL) for kind in ("qwen2", "qwen3", "qwen3_moe")),
    case("pp2-uneven", "qwen3", PIPELINE, decoder_last_pipeline_num_layers=1, recompute_granularity="full"),
    *(case("cp2", kind, CONTEXT) for kind in ("llama", "qwen3", "qwen2_moe")),
    *(case("ep2", kind, EXPERT) for kind in MIXTURES),
    case("ep2-tp2", "qwen2_moe", SPLIT_EXPERTS),
    case("ep2-distributed-optimizer", "qwen3_moe", EXPERT, use_distributed_optimizer=True),
    case("dp2", "llama", SETTINGS),
    case("dp2-distributed-optimizer", "qwen3", SETTINGS, use_distributed_optimizer=True),
    case("dp2-overlapped", "qwen3", SETTINGS, use_distributed_optimizer=True, megatron=OVERLAPPED),
    Case(name="dp2-empty-rank-qwen2", kind="qwen2", settings=SETTINGS, micro_batches=all_on_the_first_rank),
    Case(name="ep2-empty-rank-qwen3_moe", kind="qwen3_moe", settings=EXPERT, micro_batches=all_on_the_first_rank),
)

QUICK = (
    "tp2-qwen2",
    "tp2-sp-qwen3",
    "pp2-llama",
    "pp2-vpp-qwen3_moe",
    "cp2-qwen2_moe",
    "ep2-distributed-optimizer-qwen3_moe",
    "dp2-distributed-optimizer-qwen3",
    "dp2-empty-rank-qwen2",
)
"""Every layout once; the others take minutes."""
SAVED = (
    "tp2-sp-qwen3",
    "pp2-vpp-qwen3_moe",
    "cp2-qwen2_moe",
    "ep2-distributed-optimizer-qwen3_moe",
    "ep2-tp2-qwen2_moe",
)
"""What leaves a checkpoint."""


def gather_weights(trainer: Trainer, folder: Path) -> dict[str, Tensor]:
    """The whole model under Hugging Face names, on every rank."""
    from megatron.core import parallel_state

    from stages.train.megatron.model import place_of, unwrapped

    layout = weight_layout(read_huggingface_config(folder))
    weights: dict[str, Tensor] = {}
    for module in map(unwrapped, trainer.modules):
        place = place_of(module)
        for name, parameter in module.named_parameters():
            group = parallel_state.get_tensor_model_parallel_group()
            if ".experts." in name:
                group = parallel_state.get_expert_tensor_parallel_group()
            shards = [torch.empty_like(parameter) for _ in range(group.size())]
            distributed.all_gather(shards, parameter.detach().contiguous(), group=group)
            offsets = {"layer_offset": place.layer_offset, "expert_offset": place.expert_offset}
            weights.update(to_huggingface(name, shards, layout, **offsets))
    parts: list[dict[str, Tensor]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(parts, weights)
    return {name: tensor.clone().contiguous() for part in parts for name, tensor in part.items()}


def entropy_gradient(trainer: Trainer) -> float:
    """The gradient norm of a loss with entropies, which then crosses vocabulary shards."""
    return trainer.train_step([pack_samples(make_samples(9, shared=True))], weighted_loss, entropy="gradient").grad_norm


def scores_of(trainer: Trainer) -> dict[str, Tensor]:
    """Log-probs of fresh samples, also of tokens that were drawn from a few; and of a model with experts which of them
    the tokens went to, and the log-probs had each gone to the next one."""
    samples = make_samples(8, shared=True)
    (plain,), (drawn,) = (trainer.log_probs([pack_samples(each)]) for each in (samples, with_nuclei(samples)))
    scores = {"log_probs": plain, "nucleus_log_probs": drawn}
    if (count := trainer.config.num_moe_experts) is not None:
        _, [experts] = trainer.log_probs_and_experts([pack_samples(samples)])
        others = [replace(s, routed_experts=(of + 1) % count) for s, of in zip(samples, experts, strict=True)]
        scores["experts"] = torch.from_numpy(np.concatenate(experts))
        scores["replayed_log_probs"] = trainer.log_probs([pack_samples(others)])[0]
    return scores


def run_case(case: Case, models: Path, output: Path) -> None:
    from stages.train.megatron import checkpoint

    leave_groups()
    folder = models / case.kind
    trainer = Trainer(folder, case.settings)
    results = [
        trainer.train_step(case.micro_batches(step, trainer.data_parallel_rank), weighted_loss) for step in range(STEPS)
    ]
    weights = gather_weights(trainer, folder)
    if case.name in SAVED:
        checkpoint.save(trainer, output / case.name, STEPS, background=False).wait()
    scores = scores_of(trainer)
    with_entropy = entropy_gradient(trainer) if trainer.data_parallel_size == 1 else None
    rank = distributed.get_rank()
    save_file(weights, output / f"{case.name}-rank{rank}.safetensors")
    save_file(scores, output / f"{case.name}-rank{rank}-scores.safetensors")
    report = {"steps": [asdict(each) for each in results], "entropy_grad_norm": with_entropy}
    (output / f"{case.name}-rank{rank}.json").write_text(json.dumps(report))


def main(models: Path, output: Path, *names: str) -> None:
    for case in CASES:
        if case.name in names:
            run_case(case, models, output)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

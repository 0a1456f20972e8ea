"""Rules between the settings that split a model over processes, as in `checks`."""

from __future__ import annotations

from collections.abc import Iterator

from slime_stages.config.sections.train import Train
from slime_stages.config.serving_checks import Complaint


def parallel_complaints(train: Train) -> Iterator[Complaint]:
    yield from _groups(train)
    yield from _stages(train)
    yield from _recomputation(train)
    yield from _prediction(train)
    if train.sequence_parallel and train.tensor_model_parallel_size == 1:
        says = "splits tokens over tensor-parallel processes, and there are none"
        yield "sequence_parallel", says, "--tensor-model-parallel-size INTEGER"


def _groups(train: Train) -> Iterator[Complaint]:
    sizes = {
        name: getattr(train, name)
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    }
    split = [name for name, size in sizes.items() if size > 1]
    processes = f"the {train.process_count} processes (actor_num_nodes x actor_num_gpus_per_node)"
    if train.process_count % train.model_parallel_size:
        together = f"times {' times '.join(split[1:])} is {train.model_parallel_size}, which " if split[1:] else ""
        yield split[0], f"{together}does not divide {processes}", None
        return
    experts = train.expert_model_parallel_size * (train.expert_tensor_parallel_size or train.tensor_model_parallel_size)
    stage = train.process_count // train.pipeline_model_parallel_size
    if stage % experts:
        says = f"with its tensor-parallel size is {experts}, which does not divide the {stage} processes of a stage"
        yield "expert_model_parallel_size", says, None


def _stages(train: Train) -> Iterator[Complaint]:
    names = (
        "num_layers_per_virtual_pipeline_stage",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
    )
    given = [name for name in names if getattr(train, name) is not None]
    if train.pipeline_model_parallel_size == 1:
        for name in given:
            yield name, "is about pipeline stages, and there is one", "--pipeline-model-parallel-size INTEGER"
    elif names[0] in given and len(given) > 1:
        yield names[0], f"cuts stages into equal pieces, while {given[1]} makes them unequal", "drop one of the two"


def _recomputation(train: Train) -> Iterator[Complaint]:
    kind = train.recompute_granularity
    for name in ("recompute_method", "recompute_num_layers"):
        if getattr(train, name) is not None and kind != "full":
            yield name, "is read only with recompute_granularity = full", "--recompute-granularity full"
    if train.recompute_modules is not None and kind != "selective":
        says = "is read only with recompute_granularity = selective"
        yield "recompute_modules", says, "--recompute-granularity selective"
    if train.replays_routing and kind == "selective" and "moe" in (train.recompute_modules or ()):
        says = "runs experts again apart from their layer, which routing replay is told of its tokens by"
        yield "recompute_modules", says, "--recompute-granularity full"


def _prediction(train: Train) -> Iterator[Complaint]:
    if train.enable_mtp_training and train.mtp_num_layers is None:
        yield "enable_mtp_training", "trains layers that are not loaded", "--mtp-num-layers INTEGER"
    if train.enable_mtp_training and train.context_parallel_size > 1:
        says = "needs all tokens of a sample in one process, and context_parallel_size cuts them up"
        yield "enable_mtp_training", says, "context_parallel_size = 1"
    overlaps = bool(train.megatron.get("overlap_grad_reduce"))
    if train.mtp_num_layers is not None and train.pipeline_model_parallel_size > 1 and overlaps:
        says = "gives the last pipeline stage embeddings without a gradient, which overlap_grad_reduce would wait for"
        yield "mtp_num_layers", says, "drop --megatron-overlap-grad-reduce"

"""The engines of one job: which models, in which groups, on which GPUs. From the settings or from `sglang_config`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slime_stages.config import Config
from slime_stages.errors import UsageError
from slime_stages.serving.sglang_config import ServedModel, ServerGroup, WorkerType, read_sglang_config

DEFAULT_MODEL = "actor"
GENERATING = ("regular", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """Engines that are alike."""

    worker_type: WorkerType
    gpus_per_engine: int
    first_gpus: tuple[int, ...]
    """The first GPU of each engine, as a place in the list of GPUs; engines have the next ones, too."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Options of SGLang, over all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    """One model, behind one address."""

    name: str
    model_path: str | None
    """None: the weights that the plan names, and newer ones as they come."""
    groups: tuple[GroupLayout, ...]

    @property
    def engine_count(self) -> int:
        """Engines that hold samples: those that only compute prompts or images are not counted."""
        return sum(len(group.first_gpus) for group in self.groups if group.worker_type in GENERATING)

    @property
    def is_disaggregated(self) -> bool:
        """Whether one engine computes the prompt of a request and another one decodes."""
        return any(group.worker_type == "prefill" for group in self.groups)

    @property
    def needs_router(self) -> bool:
        return self.is_disaggregated or self.engine_count > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All engines of a job."""

    models: tuple[ModelLayout, ...]
    """The first one is what samples are asked of by default."""
    devices: tuple[str, ...]
    """GPUs by the names of CUDA_VISIBLE_DEVICES; empty on a machine without, where GPUs are only counted."""
    warnings: tuple[str, ...] = ()

    def devices_of(self, group: GroupLayout, engine: int) -> tuple[str, ...]:
        first = group.first_gpus[engine]
        return self.devices[first : first + group.gpus_per_engine]


def layout_of(config: Config, devices: Sequence[str]) -> Layout:
    """UsageError where the settings, the file and the GPUs that there are do not fit together."""
    serving = config.serving
    if serving.sglang_config is not None:
        path = Path(serving.sglang_config)
        models, asked = read_sglang_config(path), str(path)
        total = sum(group.num_gpus for model in models for group in model.server_groups)
        if serving.rollout_num_gpus not in (None, total):
            raise UsageError(
                f"the groups of {path} have {total} GPUs together; rollout_num_gpus is {serving.rollout_num_gpus}",
                hint=f"--rollout-num-gpus {total}, or a placeholder group for the rest",
            )
    else:
        total, asked = _gpu_count(config, len(devices)), "rollout_num_gpus"
        models = (_single_model(config, total),)
    if devices and total > len(devices):
        raise UsageError(
            f"{asked} wants {total} GPUs for engines; this job sees {len(devices)} ({', '.join(devices)})",
            hint="ask for more in sbatch/rollout.sbatch (serve.sbatch for `serve`), or lower it",
        )
    warnings = [words for model in models for words in _warnings(model, config)]
    placed = tuple(_placed(models, config))
    if any(model.is_disaggregated and model.model_path is None for model in placed):
        refuse_replay_from_pairs(config)
    return Layout(models=placed, devices=tuple(devices), warnings=tuple(warnings))


def refuse_replay_from_pairs(config: Config) -> None:
    """UsageError if training would take a prompt's experts from an engine that has not computed the prompt."""
    if config.train.use_rollout_routing_replay:
        raise UsageError(
            "use_rollout_routing_replay: engines that only decode tell experts of prompts that they never computed",
            hint="leave out --prefill-num-servers and groups of prefill and decode, or take --use-routing-replay",
        )


def _gpu_count(config: Config, visible: int) -> int:
    """GPUs for engines; without a GPU engines count as if they had theirs."""
    serving = config.serving
    if serving.rollout_num_gpus is not None:
        return serving.rollout_num_gpus
    if serving.rollout_num_engines is not None or not visible:
        return (serving.rollout_num_engines or _fewest_engines(config)) * serving.rollout_num_gpus_per_engine
    return visible


def _fewest_engines(config: Config) -> int:
    """One, and one that decodes behind those that only compute prompts."""
    return 1 + (config.serving.prefill_num_servers or 0)


def _single_model(config: Config, total: int) -> ServedModel:
    """What the settings alone ask for, as a file would."""
    serving = config.serving
    size = serving.rollout_num_gpus_per_engine
    if serving.prefill_num_servers is None:
        groups = [ServerGroup(worker_type="regular", num_gpus=total)]
    else:
        prefill = serving.prefill_num_servers * size
        if prefill >= total:
            raise UsageError(
                f"prefill_num_servers = {serving.prefill_num_servers} takes {prefill} of {total} GPUs "
                "and leaves none to decode",
                hint=f"--rollout-num-gpus {prefill + size} at least, or fewer --prefill-num-servers",
            )
        groups = [
            ServerGroup(worker_type="prefill", num_gpus=prefill),
            ServerGroup(worker_type="decode", num_gpus=total - prefill),
        ]
    return ServedModel(name=DEFAULT_MODEL, server_groups=tuple(groups))


def _placed(models: Sequence[ServedModel], config: Config) -> Iterator[ModelLayout]:
    """Give GPUs out in the order of the entries."""
    first = 0
    for model in models:
        groups = []
        for group in model.server_groups:
            size = group.num_gpus_per_engine or model.num_gpus_per_engine or config.serving.rollout_num_gpus_per_engine
            if group.worker_type != "placeholder":
                groups.append(_placed_group(model.name, group, size, first, config.serving.num_gpus_per_node))
            first += group.num_gpus
        path = None if _is_updated(model, config) else (model.own_path() or config.model.hf_checkpoint)
        yield ModelLayout(name=model.name, model_path=path, groups=tuple(groups))


def _placed_group(name: str, group: ServerGroup, size: int, first: int, node: int) -> GroupLayout:
    if size > node:
        raise UsageError(
            f"an engine of {name} has {size} GPUs, and a node {node} (num_gpus_per_node): engines stay on one node",
            hint=f"--rollout-num-gpus-per-engine {node} at most, or --num-gpus-per-node",
        )
    if group.num_gpus < size:
        raise UsageError(
            f"{group.num_gpus} GPUs are too few for one {group.worker_type} engine of {name}, which has {size}",
            hint="--rollout-num-gpus, or a smaller --rollout-num-gpus-per-engine",
        )
    overrides = {key.replace("-", "_"): value for key, value in group.overrides.items()}
    overrides.pop("model_path", None)
    return GroupLayout(
        worker_type=group.worker_type,
        gpus_per_engine=size,
        first_gpus=tuple(first + size * number for number in range(group.num_gpus // size)),
        overrides=overrides,
    )


def _is_updated(model: ServedModel, config: Config) -> bool:
    """Whether the model is the one that is trained."""
    if model.update_weights is not None:
        return model.update_weights
    path = model.own_path()
    return path is None or os.path.abspath(path) == os.path.abspath(config.model.hf_checkpoint)


def _warnings(model: ServedModel, config: Config) -> Iterator[str]:
    if model.update_weights is None and not _is_updated(model, config):
        yield f"{model.name} serves {model.own_path()} as it is: its weights are not those that are trained"
    for group in model.server_groups:
        for key in group.overrides:
            if "-" in key:
                yield f"the override {key} of {model.name} is read as {key.replace('-', '_')}"
        size = group.num_gpus_per_engine or model.num_gpus_per_engine or config.serving.rollout_num_gpus_per_engine
        if group.worker_type != "placeholder" and group.num_gpus % size:
            yield f"{group.num_gpus % size} of {group.num_gpus} GPUs of {model.name} are left idle: engines have {size}"

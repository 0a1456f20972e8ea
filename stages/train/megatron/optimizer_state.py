"""The optimiser's state in a checkpoint, with what Megatron-Core needs to resume torch's AdamW exactly.

Megatron-Core's distributed optimiser expects fused optimisers that count steps per parameter group. torch's AdamW
counts them per parameter, in a tensor, and a resumed run would drift without four things:

1. a fresh AdamW has no state at all, so there is nothing to save or to plan loading from: empty state is put in first;
2. the loaded shards carry no `step`, on which `_set_main_param_and_optimizer_states` then fails: the present one is
   passed through;
3. after loading, all parameters share one step tensor, so that each step would count once for every parameter: each
   gets its own;
4. several buckets of gradients, as overlapped reductions have, are saved with each parameter's own state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

SHARDING = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}
"""The only format in which the distributed optimiser resumes exactly, also on another number of ranks."""


def sharded_optimizer_state(optimizer: Any, model_state: Any, *, is_loading: bool) -> Any:
    """What to save of the optimiser, which may not have taken a step yet, or where to load it to."""
    _fill_empty_state(optimizer)
    with _found_without_padding(optimizer):
        return optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=SHARDING)


def load_optimizer_state(optimizer: Any, state: Any) -> None:
    """Take over moments and steps; learning rates, betas and decay stay those of the config in force."""
    settings = [[_settings(group) for group in each.param_groups] for each in _inner_optimizers(optimizer)]
    _fill_missing_steps(state)
    with _step_passed_through(), torch.no_grad():
        optimizer.load_state_dict(state)
    for each, groups in zip(_inner_optimizers(optimizer), settings, strict=True):
        for group, own in zip(each.param_groups, groups, strict=True):
            group.update(own)
        for parameter_state in each.state.values():
            if isinstance(parameter_state.get("step"), torch.Tensor):
                parameter_state["step"] = parameter_state["step"].clone()


@torch.no_grad()
def reset_optimizer_state(optimizer: Any) -> None:
    """Moments and steps are 0 again; parameters and learning rates stay."""
    for each in _inner_optimizers(optimizer):
        for parameter_state in each.state.values():
            for value in parameter_state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        for group in each.param_groups:
            if "step" in group:
                group["step"] = 0


def _inner_optimizers(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """torch's optimisers; a rank that trains nothing of a kind has a stub without one."""
    for each in _parts(optimizer):
        if each.optimizer is not None:
            yield each.optimizer


def _parts(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "step")}


def _fill_empty_state(optimizer: Any) -> None:
    for each in _inner_optimizers(optimizer):
        if not isinstance(each, torch.optim.AdamW | torch.optim.Adam):
            continue
        for group in each.param_groups:
            for parameter in group["params"]:
                if not each.state[parameter]:
                    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    each.state[parameter].update(step=torch.tensor(0.0), **zeros)


def _fill_missing_steps(state: dict[str, Any]) -> None:
    """Megatron-Core leaves a common step of 0 out, and torch wants one: of an optimiser that was saved before its first
    step, as a policy is while the critic alone is trained."""
    for part in (state, *(value for value in state.values() if isinstance(value, dict))):
        of_parameters = part.get("state")
        if isinstance(of_parameters, dict) and "common_step" not in of_parameters:
            for values in of_parameters.values():
                if isinstance(values, dict):
                    values.setdefault("step", torch.tensor(0.0))


@contextmanager
def _found_without_padding(optimizer: Any) -> Iterator[None]:
    """Megatron-Core gathers a buffer without the padding behind each of its buckets, and then looks parameters up where
    they are with it: where there are several buckets, parameters would be saved with the state of their neighbours."""
    buffers = [buffer for each in _parts(optimizer) for buffer in getattr(each, "buffers", [])]
    originals = [buffer.param_index_map for buffer in buffers]
    for buffer in buffers:
        paddings = [bucket.grad_data.numel() - bucket.numel_unpadded for bucket in buffer.buckets]
        before = [0, *accumulate(paddings)]
        buffer.param_index_map = {
            parameter: (start - before[bucket], end - before[bucket], bucket)
            for parameter, (start, end, bucket) in buffer.param_index_map.items()
        }
    try:
        yield
    finally:
        for buffer, original in zip(buffers, originals, strict=True):
            buffer.param_index_map = original


@contextmanager
def _step_passed_through() -> Iterator[None]:
    original = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self: Any, model_parameter: Any, tensors: dict[str, Any]) -> None:
        group, order = self.model_param_group_index_map[model_parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" in state:
            tensors.setdefault("step", state["step"])
        original(self, model_parameter, tensors)

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
    try:
        yield
    finally:
        DistributedOptimizer._set_main_param_and_optimizer_states = original

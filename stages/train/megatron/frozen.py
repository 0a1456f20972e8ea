"""Which parameters are trained, by patterns of their Megatron names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch.distributed as distributed
from megatron.core import parallel_state

from slime_stages.errors import UsageError
from stages.train.megatron.settings import TrainerSettings

PREDICTION_LAYERS = r"\bmtp\.layers\."
"""Without a loss they have no gradient, but weight decay would change them."""


def freeze_parameters(modules: Sequence[Any], settings: TrainerSettings) -> None:
    """Before the model is wrapped: what is not to be trained gets no gradient and no optimizer state.

    All pipeline stages call it: a pattern may be for the parameters of one of them.
    """
    only, frozen = settings.only_train_params_name_list, settings.freeze_params_name_list
    if settings.mtp_num_layers is not None and not settings.enable_mtp_training:
        frozen = (*(frozen or ()), PREDICTION_LAYERS)
    if only is None and frozen is None:
        return
    own = []
    for name, parameter in (each for module in modules for each in module.named_parameters()):
        wanted = only is None or any(re.search(pattern, name) for pattern in only)
        parameter.requires_grad_(wanted and not any(re.search(pattern, name) for pattern in frozen or ()))
        own.append((name, bool(parameter.requires_grad)))
    parameters = _of_all_stages(own)
    for pattern in (only or ()) + (frozen or ()):
        if not any(re.search(pattern, name) for name, _ in parameters):
            hint = f"names are such as {parameters[-1][0]}"
            raise UsageError(f"no parameter has {pattern!r} in its name", hint=hint)
    if not any(is_trained for _, is_trained in parameters):
        raise UsageError("every parameter is frozen, so that nothing would be trained", hint="freeze fewer")


def _of_all_stages(own: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    group = parallel_state.get_pipeline_model_parallel_group()
    gathered: list[list[tuple[str, bool]]] = [[] for _ in range(group.size())]
    distributed.all_gather_object(gathered, own, group=group)
    return [each for stage in gathered for each in stage]

"""Which parameters are trained, by patterns of their Megatron names."""

from __future__ import annotations

import re
from typing import Any

from slime_stages.errors import UsageError
from stages.train.megatron.settings import TrainerSettings


def freeze_parameters(module: Any, settings: TrainerSettings) -> None:
    """Before the model is wrapped: what is not to be trained gets no gradient and no optimizer state."""
    only, frozen = settings.only_train_params_name_list, settings.freeze_params_name_list
    if only is None and frozen is None:
        return
    names = [name for name, _ in module.named_parameters()]
    for pattern in (only or ()) + (frozen or ()):
        if not any(re.search(pattern, name) for name in names):
            raise UsageError(f"no parameter has {pattern!r} in its name", hint=f"names are such as {names[-1]}")
    for name, parameter in module.named_parameters():
        wanted = only is None or any(re.search(pattern, name) for pattern in only)
        parameter.requires_grad_(wanted and not any(re.search(pattern, name) for pattern in frozen or ()))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError("every parameter is frozen, so that nothing would be trained")

"""SGLang plug-in: lets `--enable-deterministic-inference` run on a CPU.

SGLang discovers it by its entry point in every process of the server. On a CPU torch's attention works one sequence
at a time and so does not depend on the batch; matrix products do, which `enable_batch_invariant_mode` mends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

ROW_MULTIPLE = 8
"""MKL takes other paths for products of few or odd rows; from this multiple on a row's bits do not depend on the others."""


def register() -> None:
    """Called by SGLang at the start of each of its processes."""
    from sglang.srt.arg_groups.choices import (
        add_deterministic_attention_backend_choices,
        add_radix_supported_deterministic_attention_backend_choices,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_deterministic_attention_backend_choices(["torch_native"])
    add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    HookRegistry.register(
        "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode", enable_batch_invariant_mode, HookType.REPLACE
    )


def enable_batch_invariant_mode(enable_bmm: bool = True) -> None:
    """Pad the rows of every two-dimensional product, so that a request's numbers do not depend on its companions."""
    import torch

    functional: Any = torch.nn.functional
    functional.linear = pad_rows(functional.linear)
    torch.matmul = pad_rows(torch.matmul)
    torch.mm = pad_rows(torch.mm)


def pad_rows(product: Callable[..., Any]) -> Callable[..., Any]:
    """`product` over the rows of its first argument, computed at the next multiple of `ROW_MULTIPLE` rows."""
    import torch

    @functools.wraps(product)
    def padded(rows: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        missing = -rows.shape[0] % ROW_MULTIPLE if rows.dim() == 2 else 0
        if not missing or kwargs.get("out") is not None:
            return product(rows, *args, **kwargs)
        longer = torch.nn.functional.pad(rows, (0, 0, 0, missing))
        return product(longer, *args, **kwargs)[: rows.shape[0]]

    return padded

"""Let Megatron-Core run where there is no CUDA; does nothing where there is.

Megatron-Core has no CPU mode: it allocates on "cuda" and asks for CUDA's random state on the training path.
This is the only module that knows about it, or that may depend on Megatron's version.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_installed = threading.local()


class _CudaMeansCpu(TorchFunctionMode):
    """Serves requests for CUDA tensors with CPU tensors that answer to the type names Megatron checks."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        device = kwargs.get("device")
        if device is not None and str(device).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def install() -> None:
    """Call before importing Megatron-Core, in every thread that runs it: the redirection is per thread."""
    if torch.cuda.is_available() or getattr(_installed, "mode", None) is not None:
        return
    # On every import and layer it says that Apex and Transformer Engine, which need CUDA, are absent.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    _stand_in_for_torch_cuda()
    _stand_in_for_cuda_random_state()
    _installed.mode = _CudaMeansCpu()
    _installed.mode.__enter__()


def _stand_in_for_torch_cuda() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda.synchronize = cuda.empty_cache = lambda *args, **kwargs: None
    for name in ("current_stream", "Stream", "stream"):
        setattr(cuda, name, getattr(torch.cpu, name))
    cuda.default_stream = torch.cpu.current_stream


def _stand_in_for_cuda_random_state() -> None:
    """Megatron reads and writes CUDA's generators directly for dropout and recomputation."""
    import megatron.core.tensor_parallel.random as megatron_random

    random: Any = megatron_random
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda new_state, *args, **kwargs: torch.set_rng_state(new_state)

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
    _leave_functions_uncompiled()
    _stand_in_for_cuda_random_state()
    _stand_in_for_copies_to_the_host()
    _installed.mode = _CudaMeansCpu()
    _installed.mode.__enter__()


def _leave_functions_uncompiled() -> None:
    """Compiling one of Megatron's small functions takes longer than a tiny model's training."""
    from megatron.core.jit import disable_jit_fuser

    disable_jit_fuser()  # each module asks as it is imported


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


def _stand_in_for_copies_to_the_host() -> None:
    """Megatron's dispatcher of tokens to experts copies their counts to the host on a stream beside the computation."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def copy_now(self: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> torch.Tensor | None:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            if isinstance(getattr(self, name, None), torch.Tensor):
                setattr(self, name, getattr(self, name).numpy())
        return tokens_per_expert

    dispatcher: Any = token_dispatcher.MoEAlltoAllTokenDispatcher
    dispatcher.cuda_dtoh_stream = object()
    dispatcher._maybe_dtoh_and_synchronize = copy_now
    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16 asks whether it is None, and only imports it with TE
        utils: Any = moe_utils
        utils.te_general_gemm = None

"""The trainer: log-probs of packed micro-batches, and optimizer steps on a loss that the caller defines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor

from stages.train.megatron import parallel
from stages.train.megatron.copies import WeightCopies
from stages.train.megatron.packing import PackedMicroBatch, PackedSample, pack_samples
from stages.train.megatron.settings import TrainerSettings

EntropyMode = Literal["none", "value", "gradient"]
"""value: for metrics; gradient: the loss depends on it."""

LossFunction = Callable[[PackedMicroBatch, Tensor, Tensor | None], tuple[Tensor, Mapping[str, Tensor]]]
"""From a micro-batch, log-probs [N] and entropies [N] (None unless asked for) to its share of the loss and of metrics.
With `on_logits` it gets logits [N, V / tp] in their place, float32 and as the model gave them.

The step's loss and metrics are the sums over all micro-batches of all data-parallel ranks: the function's weights
contain every denominator.
"""


ModelProvider = Callable[..., Any]
"""Called with `pre_process` and `post_process`: whether this rank has the model's first and its last layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimizer step did."""

    grad_norm: float
    """Before clipping; NaN or infinite if the step was skipped for it."""

    lr: float
    """The learning rate of this step."""

    metrics: dict[str, float]
    """Sums over all micro-batches of all data-parallel ranks; `loss` among them."""

    updated: bool
    """False: gradients were not finite, parameters, optimizer and scheduler are as before."""


class Trainer:
    """A model in training on this rank.

    Every rank of the job makes the same calls. Ranks of one tensor-parallel group pass the same micro-batches.
    """

    def __init__(
        self,
        folder: Path,
        settings: TrainerSettings,
        *,
        load_weights: bool = True,
        provider: ModelProvider | None = None,
    ) -> None:
        """Join the job (see `parallel.initialize`) and load a Hugging Face folder: its config, and its weights unless
        a checkpoint is loaded next. `provider` makes the model in place of `build_model`'s own."""
        parallel.initialize(settings.tensor_model_parallel_size, seed=settings.seed)
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.pipeline_parallel import get_forward_backward_func

        from stages.train.megatron.frozen import freeze_parameters
        from stages.train.megatron.model import build_model
        from stages.train.megatron.optimizer import build_optimizer, build_scheduler

        self.settings = settings
        self.device = parallel.device()
        module = build_model(folder, settings, self.device, load_weights=load_weights, provider=provider)
        freeze_parameters(module, settings)
        self.config = module.config
        buckets = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=settings.use_distributed_optimizer
        )
        self.model = DistributedDataParallel(self.config, buckets, module)
        self.optimizer = build_optimizer(self.model, settings)
        self.scheduler = build_scheduler(self.optimizer, settings)
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        self._forward_backward = get_forward_backward_func()
        self.data_parallel_group = parallel_state.get_data_parallel_group()
        self.copies = WeightCopies(self.model.module)

    @property
    def data_parallel_rank(self) -> int:
        return int(distributed.get_rank(self.data_parallel_group))

    @property
    def data_parallel_size(self) -> int:
        return int(distributed.get_world_size(self.data_parallel_group))

    def load_weights(self, folder: Path) -> None:
        """Fill the model from another Hugging Face folder of the same architecture."""
        from stages.train.megatron.model import load_huggingface_weights, unwrapped

        load_huggingface_weights(unwrapped(self.model.module), folder)
        self.optimizer.reload_model_params()

    def log_probs(self, micro_batches: Sequence[PackedMicroBatch]) -> list[Tensor]:
        """[N] for each micro-batch, without gradients."""
        return [log_probs for log_probs, _ in self._score(micro_batches, "none")]

    def log_probs_and_entropies(self, micro_batches: Sequence[PackedMicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """[N] and [N] for each micro-batch, without gradients."""
        scores = self._score(micro_batches, "value")
        return [(log_probs, entropies) for log_probs, entropies in scores if entropies is not None]

    @torch.no_grad()
    def values(self, micro_batches: Sequence[PackedMicroBatch]) -> list[Tensor]:
        """[N] for each micro-batch, of a value model, without gradients."""
        self.model.eval()
        return [self._logits(self.model, each).float().squeeze(-1) for each in micro_batches]

    def train_step(
        self,
        micro_batches: Sequence[PackedMicroBatch],
        loss_function: LossFunction,
        *,
        forward_only: Sequence[PackedMicroBatch] = (),
        entropy: EntropyMode = "none",
        on_logits: bool = False,
        increment: int = 1,
        before: Callable[[], object] = lambda: None,
    ) -> StepResult:
        """One optimizer step on the sum of all losses; a rank may have no micro-batch at all.

        `forward_only` micro-batches count in loss and metrics, but have no gradient: for samples whose gradient
        is known to be zero. `increment` is what the learning-rate schedule advances by. `before` is called once
        gradients are 0.
        """
        from stages.train.megatron.optimizer import apply_gradients

        scores: EntropyMode | None = None if on_logits else entropy

        self.model.train()
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        before()
        parts = self._run(micro_batches or [_stand_in()], loss_function if micro_batches else _no_loss, scores)
        with torch.no_grad():
            parts += self._run(forward_only, loss_function, scores, forward_only=True)
        lr = float(self.optimizer.param_groups[0]["lr"])
        grad_norm, updated = apply_gradients(self.optimizer, self.settings.clip_grad)
        if updated:
            self.scheduler.step(increment)
        return StepResult(grad_norm=grad_norm, lr=lr, metrics=self._sum_metrics(parts), updated=updated)

    def _run(
        self,
        micro_batches: Sequence[PackedMicroBatch],
        loss_function: LossFunction,
        entropy: EntropyMode | None,
        *,
        forward_only: bool = False,
    ) -> list[Mapping[str, Tensor]]:
        """Megatron's schedule over the micro-batches; gradients end up summed over the data-parallel ranks.

        Without an entropy mode the loss function gets logits.
        """
        if not micro_batches:
            return []

        def forward_step(iterator: Iterator[PackedMicroBatch], model: Any) -> tuple[Tensor, Callable[..., Any]]:
            micro_batch = next(iterator)

            def compute_loss(logits: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
                if entropy is None:
                    loss, metrics = loss_function(micro_batch, logits.float(), None)
                else:
                    loss, metrics = loss_function(micro_batch, *self._token_scores(logits, micro_batch, entropy))
                # A token count of zero: nothing is divided by it.
                no_tokens = torch.zeros((), dtype=torch.int, device=self.device)
                return loss, no_tokens, {"loss": loss.detach(), **metrics}

            return self._logits(model, micro_batch), compute_loss

        parts: list[Mapping[str, Tensor]] = self._forward_backward(
            forward_step_func=forward_step,
            data_iterator=iter(micro_batches),
            model=self.model,
            num_microbatches=len(micro_batches),
            seq_length=len(micro_batches[0].tokens),
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return parts

    @torch.no_grad()
    def _score(
        self, micro_batches: Sequence[PackedMicroBatch], entropy: EntropyMode
    ) -> list[tuple[Tensor, Tensor | None]]:
        self.model.eval()
        return [self._token_scores(self._logits(self.model, each), each, entropy) for each in micro_batches]

    def _logits(self, model: Any, micro_batch: PackedMicroBatch) -> Tensor:
        from stages.train.megatron.attention import place_attention

        logits: Tensor = model(
            tokens=self._place(micro_batch.tokens),
            positions=self._place(micro_batch.positions),
            packed_row=place_attention(micro_batch, dtype=self.config.params_dtype, device=self.device),
            logit_rows=self._place(micro_batch.logit_rows),
        )
        return logits

    def _token_scores(
        self, logits: Tensor, micro_batch: PackedMicroBatch, entropy: EntropyMode
    ) -> tuple[Tensor, Tensor | None]:
        from stages.train.megatron.log_probs import entropies_of, log_probs_of, scale_logits

        logits = scale_logits(logits, self.settings.rollout_temperature)
        entropies = None if entropy == "none" else entropies_of(logits, with_gradient=entropy == "gradient")
        return log_probs_of(logits, self._place(micro_batch.targets)), entropies

    def _place(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _sum_metrics(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """Ranks may hold different names, or none, so that plain objects are exchanged."""
        local: dict[str, float] = {}
        for part in parts:
            for name, value in part.items():
                local[name] = local.get(name, 0.0) + float(value)
        gathered: list[dict[str, float]] = [local]
        if self.data_parallel_size > 1:
            gathered = [{}] * self.data_parallel_size
            distributed.all_gather_object(gathered, local, group=self.data_parallel_group)
        names = dict.fromkeys(name for each in gathered for name in each)
        return {name: sum(each.get(name, 0.0) for each in gathered) for name in names}


def _stand_in() -> PackedMicroBatch:
    """The smallest micro-batch, so that a rank without samples takes part in collectives."""
    return pack_samples([PackedSample(tokens=np.zeros(2, np.int64), response_length=1)])


def _no_loss(
    micro_batch: PackedMicroBatch, log_probs: Tensor, entropies: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    return log_probs.sum() * 0.0, {}

"""The trainer: log-probs of packed micro-batches, and optimizer steps on a loss that the caller defines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor

from stages.train.megatron import parallel
from stages.train.megatron.copies import WeightCopies
from stages.train.megatron.packing import PackedMicroBatch, target_counts
from stages.train.megatron.settings import TrainerSettings

if TYPE_CHECKING:
    from stages.train.megatron.passes import Finish, Item, Watch

EntropyMode = Literal["none", "value", "gradient"]
"""value: for metrics; gradient: the loss depends on it."""

LossFunction = Callable[[PackedMicroBatch, Tensor, Tensor | None], tuple[Tensor, Mapping[str, Tensor]]]
"""From a micro-batch, log-probs [N] and entropies [N] (None unless asked for) to its share of the loss and of metrics.
With `on_logits` it gets logits [N, V / tp] in their place, float32 and as the model gave them.

The step's loss and metrics are the sums over all micro-batches of all data-parallel ranks: the function's weights
contain every denominator.
"""


Score = Callable[["Item", Tensor], Mapping[str, Tensor]]
"""From logits [M, V / tp] at the rows that a rank has of a micro-batch to numbers [N] of all response tokens."""

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
        parallel.initialize(settings)
        from megatron.core import parallel_state
        from megatron.core.distributed import finalize_model_grads

        from stages.train.megatron.frozen import freeze_parameters
        from stages.train.megatron.model import build_model, unwrapped
        from stages.train.megatron.mtp_loss import MtpLoss
        from stages.train.megatron.optimizer import build_optimizer, build_scheduler
        from stages.train.megatron.passes import Passes

        self.settings = settings
        self.device = parallel.device()
        modules = build_model(folder, settings, self.device, load_weights=load_weights, provider=provider)
        freeze_parameters(modules, settings)
        last = unwrapped(modules[-1])
        self._head = last.defer_logits() if settings.log_probs_chunk_size > 0 else None
        self._mtp_loss = MtpLoss(settings=settings, head=self._head and last.mtp_logits)
        self.config = modules[0].config
        self.chunks = _with_gradient_buckets(modules, settings)
        self.model: Any = self.chunks[0] if len(self.chunks) == 1 else self.chunks
        self.optimizer = build_optimizer(self.chunks, settings)
        self.scheduler = build_scheduler(self.optimizer, settings)
        syncs = [each.no_sync for each in self.chunks]  # overlapped reductions wait for the last micro-batch
        self.config.no_sync_func = syncs[0] if len(syncs) == 1 else syncs
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        self._passes = Passes(self.chunks, self.config, self.device)
        self.data_parallel_group = parallel_state.get_data_parallel_group()
        self.copies = WeightCopies(self.modules)

    @property
    def modules(self) -> list[Any]:
        """The model on this rank without what wraps it for data parallelism, one a virtual pipeline stage."""
        return [chunk.module for chunk in self.chunks]

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Of this rank; a later virtual pipeline stage's names begin with its number."""
        for number, module in enumerate(self.modules):
            for name, parameter in module.named_parameters():
                yield (f"{number}.{name}" if number else name), parameter

    @property
    def data_parallel_rank(self) -> int:
        return int(distributed.get_rank(self.data_parallel_group))

    @property
    def data_parallel_size(self) -> int:
        return int(distributed.get_world_size(self.data_parallel_group))

    def watch(self, function: Watch) -> None:
        """Have `function` told of every micro-batch from now on."""
        self._passes.watch = function

    def load_weights(self, folder: Path) -> None:
        """Fill the model from another Hugging Face folder of the same architecture."""
        from stages.train.megatron.model import load_huggingface_weights, unwrapped

        for module in self.modules:
            load_huggingface_weights(unwrapped(module), folder)
        self.optimizer.reload_model_params()

    def log_probs(self, micro_batches: Sequence[PackedMicroBatch]) -> list[Tensor]:
        """[N] for each micro-batch, without gradients."""
        return self._score(micro_batches, self._scores("none"), ("log_probs",))["log_probs"]

    def log_probs_and_experts(
        self, micro_batches: Sequence[PackedMicroBatch]
    ) -> tuple[list[Tensor], list[list[NDArray[np.int64]]]]:
        """[N] for each micro-batch, without gradients; and for each the experts that its samples' tokens went to,
        [S] times [P + R - 1, layers * K], for `PackedSample.routed_experts`."""
        written: list[NDArray[np.int64]] = []
        scores = self._score(micro_batches, self._scores("none"), ("log_probs",), written=written)["log_probs"]
        return scores, [
            [of_row[rows] for rows in micro_batch.sample_rows]
            for micro_batch, of_row in zip(micro_batches, written, strict=True)
        ]

    def log_probs_and_entropies(self, micro_batches: Sequence[PackedMicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """[N] and [N] for each micro-batch, without gradients."""
        scores = self._score(micro_batches, self._scores("value"), ("log_probs", "entropies"))
        return list(zip(scores["log_probs"], scores["entropies"], strict=True))

    def values(self, micro_batches: Sequence[PackedMicroBatch]) -> list[Tensor]:
        """[N] for each micro-batch, of a value model, without gradients."""

        def finish(item: Item, output: Tensor) -> dict[str, Tensor]:
            return {"values": join_context(self._logits(output).float().squeeze(-1), item)}

        from stages.train.megatron.passes import join_context

        return self._score(micro_batches, finish, ("values",))["values"]

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

        for chunk in self.chunks:
            chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        before()
        finish = self._loss(loss_function, None if on_logits else entropy)
        mtp_count = (self.settings.mtp_num_layers or 0) if self.settings.enable_mtp_training else 0
        parts = self._passes.run(micro_batches, finish, forward_only=False, mtp_count=mtp_count)
        with torch.no_grad():
            parts += self._passes.run(forward_only, finish, forward_only=True)
        lr = float(self.optimizer.param_groups[0]["lr"])
        grad_norm, updated = apply_gradients(self.optimizer, self.settings.clip_grad)
        if updated:
            self.scheduler.step(increment)
        return StepResult(grad_norm=grad_norm, lr=lr, metrics=self._sum_metrics(parts), updated=updated)

    def _loss(self, loss_function: LossFunction, entropy: EntropyMode | None) -> Finish:
        """Without an entropy mode the loss function gets logits."""
        from stages.train.megatron.passes import join_context

        def finish(item: Item, output: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
            if entropy is None:
                loss, metrics = loss_function(item.micro_batch, join_context(self._logits(output).float(), item), None)
            else:
                scores = self._token_scores(item, output, entropy)
                loss, metrics = loss_function(item.micro_batch, scores["log_probs"], scores.get("entropies"))
            total, of_mtp = self._mtp_loss.added_to(loss, item)
            return total, {"loss": loss.detach(), **metrics, **of_mtp}

        return finish

    def _scores(self, entropy: EntropyMode) -> Score:
        return lambda item, logits: self._token_scores(item, logits, entropy)

    @torch.no_grad()
    def _score(
        self,
        micro_batches: Sequence[PackedMicroBatch],
        score: Score,
        names: Sequence[str],
        *,
        written: list[NDArray[np.int64]] | None = None,
    ) -> dict[str, list[Tensor]]:
        """By name, [N] for each micro-batch; the experts that its rows went to are added to `written`."""

        def finish(item: Item, logits: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
            return logits.new_zeros(()), score(item, logits)

        for chunk in self.chunks:
            chunk.eval()
        if written is None:
            results = self._passes.run(micro_batches, finish, forward_only=True)
        else:
            results, experts = self._passes.record(micro_batches, finish)
            written += experts
        lengths = target_counts(micro_batches)
        found = {}
        for name in names:
            own = torch.cat([each[name] for each in results]) if results else torch.zeros(sum(lengths))
            values = parallel.from_last_stage(own.to(self.device)) if lengths else own
            found[name] = list(torch.split(values, lengths))
        return found

    def _token_scores(self, item: Item, output: Tensor, entropy: EntropyMode) -> dict[str, Tensor]:
        from stages.train.megatron.token_scores import Scoring, token_scores

        scoring = Scoring(
            temperature=self.settings.rollout_temperature,
            entropies=entropy != "none",
            with_gradient=entropy == "gradient",
            head=self._head,
            chunk_size=self.settings.log_probs_chunk_size,
        )
        return token_scores(output, item, scoring)

    def _logits(self, output: Tensor) -> Tensor:
        """[M, V / tp], or of a value model [M, 1], from what the model gave."""
        return output if self._head is None else self._head(output)

    def _sum_metrics(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """Ranks may hold different names, or none, so that plain objects are exchanged; the last stage has them."""
        from megatron.core import parallel_state

        local: dict[str, float] = {}
        for part in parts:
            for name, value in part.items():
                local[name] = local.get(name, 0.0) + float(value)
        gathered: list[dict[str, float]] = [local]
        if self.data_parallel_size > 1:
            gathered = [{}] * self.data_parallel_size
            distributed.all_gather_object(gathered, local, group=self.data_parallel_group)
        names = dict.fromkeys(name for each in gathered for name in each)
        sums = [{name: sum(each.get(name, 0.0) for each in gathered) for name in names}]
        stages = parallel_state.get_pipeline_model_parallel_group()
        if stages.size() > 1:
            distributed.broadcast_object_list(
                sums, parallel_state.get_pipeline_model_parallel_last_rank(), group=stages
            )
        return sums[0]


def _with_gradient_buckets(modules: Sequence[Any], settings: TrainerSettings) -> list[Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    from stages.train.megatron.config import own_fields

    fields: dict[str, Any] = {
        "grad_reduce_in_fp32": True,
        "use_distributed_optimizer": settings.use_distributed_optimizer,
    }
    fields |= own_fields(DistributedDataParallelConfig, settings.megatron)
    return [DistributedDataParallel(each.config, DistributedDataParallelConfig(**fields), each) for each in modules]

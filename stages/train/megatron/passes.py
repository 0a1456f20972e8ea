"""Forward and backward passes over packed micro-batches, by Megatron's schedule: what goes in on each rank of a model,
and what comes out of its last pipeline stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from stages.train.megatron import routing
from stages.train.megatron.attention import place_row
from stages.train.megatron.mtp import MtpInput
from stages.train.megatron.mtp_rows import WEIGHT, MtpRow, mtp_rows
from stages.train.megatron.packing import PackedMicroBatch, PackedSample, pack_samples
from stages.train.megatron.routing import RowRouting
from stages.train.megatron.share import RowShare, share_of


@dataclass(slots=True, kw_only=True)
class Item:
    """One micro-batch on its way through the model."""

    micro_batch: PackedMicroBatch = field(repr=False)

    share: RowShare = field(repr=False)

    routing: RowRouting | None
    """Which experts its rows go to, if that is to be written down or taken from the micro-batch."""

    is_real: bool = True
    """False: in place of one, on a rank that has fewer than others."""

    mtp: tuple[MtpItem, ...] = ()
    """Its way through the layers for multi-token prediction, if they are to see it."""


@dataclass(slots=True, kw_only=True)
class MtpItem(Item):
    """The row of one of these layers."""

    sources: np.ndarray[Any, np.dtype[np.int64]] = field(repr=False)
    """[T] as in `MtpRow`, padding included."""

    output: Tensor | None = field(repr=False, default=None)
    """What the layer gave for it, at the last stage."""


FP8_MULTIPLE = 16
"""Rows that Transformer Engine multiplies in fp8 come in multiples of it."""

Output = Tensor | tuple[Tensor, ...]
"""Of a model: logits [M, V / tp], and behind them those of each layer for multi-token prediction that saw the item."""

Finish = Callable[[Item, Tensor], tuple[Tensor, Mapping[str, Tensor]]]
"""From the logits [M, V / tp] of an item to its loss and whatever else is wanted of it, at the last stage."""


Watch = Callable[[int, int], object]
"""Called with the number of the micro-batch that comes next, from 1, and with how many there are."""


class Passes:
    """Of one model; all ranks call the same methods, those of one data-parallel rank with the same micro-batches."""

    def __init__(self, chunks: list[Any], config: Any, device: torch.device) -> None:
        self._chunks = chunks
        self._config = config
        self._device = device
        self._forward_backward = get_forward_backward_func()
        self.watch: Watch = lambda number, count: None
        self._is_split = bool(config.sequence_parallel)
        self._multiple = config.tensor_model_parallel_size if self._is_split else 1
        if config.fp8:
            self._multiple *= FP8_MULTIPLE

    def run(
        self,
        micro_batches: Sequence[PackedMicroBatch],
        finish: Finish,
        *,
        forward_only: bool,
        mtp_count: int = 0,
    ) -> list[Mapping[str, Tensor]]:
        """What `finish` gave for each micro-batch, at the last pipeline stage; elsewhere nothing.

        `mtp_count` layers for multi-token prediction see each of them, too. Gradients end up summed over the
        data-parallel ranks.
        """
        make = partial(self._item, mtp_count=mtp_count)
        return self._run(
            lambda: map(make, micro_batches), len(micro_batches), finish, forward_only=forward_only, mtp_count=mtp_count
        )

    @torch.no_grad()
    def record(self, micro_batches: Sequence[PackedMicroBatch], finish: Finish) -> tuple[list[Any], list[Any]]:
        """As `run`, forward only, and on all ranks the experts [T, layers * K] that each row went to."""
        items = [self._item(each) for each in micro_batches]
        for item in items:
            item.routing = RowRouting(given=None)
        results = self._run(lambda: iter(items), len(items), finish, forward_only=True)
        return results, [self._written(item) for item in items]

    def _run(
        self,
        items: Callable[[], Iterator[Item]],
        real_count: int,
        finish: Finish,
        *,
        forward_only: bool,
        mtp_count: int = 0,
    ) -> list[Mapping[str, Tensor]]:
        """`items` is called once a piece of the model: each works through all of them."""
        count = self._count_of_passes(real_count, forward_only=forward_only)
        if count == 0:
            return []
        stand_in = replace(self._item(_smallest(), mtp_count=mtp_count), is_real=False)
        no_tokens = torch.zeros((), dtype=torch.int, device=self._device)  # nothing is divided by them

        def forward_step(iterator: Iterator[Item], model: Any) -> tuple[Output, Callable[..., Any]]:
            item = next(iterator)

            def compute_loss(output: Output) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
                loss, results = _finished(item, output, finish)
                return loss, no_tokens, results

            return self._forward(model, item), compute_loss

        iterators = [chain(self._watched(items(), real_count), repeat(stand_in)) for _ in self._chunks]
        is_one = len(self._chunks) == 1
        results: list[Mapping[str, Tensor]] = self._forward_backward(
            forward_step_func=forward_step,
            data_iterator=iterators[0] if is_one else iterators,
            model=self._chunks[0] if is_one else self._chunks,
            num_microbatches=count,
            seq_length=1,  # no shape depends on it: stages tell each other theirs
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return results[:real_count]

    def _watched(self, items: Iterator[Item], count: int) -> Iterator[Item]:
        for number, item in enumerate(items, start=1):
            self.watch(number, count)
            yield item

    def _count_of_passes(self, count: int, *, forward_only: bool) -> int:
        """Ranks that exchange tokens within a pass make as many; gradients are added up even over ranks with none."""
        count = count if forward_only else max(count, 1)
        if self._config.expert_model_parallel_size > 1:
            most = torch.tensor(count, device=self._device)
            group = parallel_state.get_data_parallel_group()
            distributed.all_reduce(most, op=distributed.ReduceOp.MAX, group=group)
            count = int(most)
        multiple = self._config.microbatch_group_size_per_vp_stage if len(self._chunks) > 1 else 1
        return -(-count // multiple) * multiple

    def _item(self, micro_batch: PackedMicroBatch, *, mtp_count: int = 0) -> Item:
        group = parallel_state.get_context_parallel_group()
        share = share_of(micro_batch, rank=group.rank(), size=group.size(), multiple=self._multiple)
        given = None
        if micro_batch.routed_experts is not None:
            chosen = torch.from_numpy(micro_batch.routed_experts[share.rows])
            rows = chosen.reshape(len(chosen), self._config.num_layers, self._config.moe_router_topk)
            given = RowRouting(given=routing.rows_of_this_rank(rows, is_split=self._is_split).to(self._device))
        mtp = tuple(map(self._mtp_item, mtp_rows(micro_batch, mtp_count))) if mtp_count else ()
        return Item(micro_batch=micro_batch, share=share, routing=given, mtp=mtp)

    def _mtp_item(self, row: MtpRow) -> MtpItem:
        share = share_of(row.packed, multiple=self._multiple)
        return MtpItem(micro_batch=row.packed, share=share, routing=None, sources=row.sources[share.rows])

    def _forward(self, model: Any, item: Item) -> Output:
        placed = self._placed(item)
        placed["packed_row"].routing = item.routing
        if item.mtp:
            sources = [self._place(each.sources) for each in item.mtp]
            placed["mtp_inputs"] = [
                MtpInput(**self._placed(each), sources=of) for each, of in zip(item.mtp, sources, strict=True)
            ]
        output: Output = model(**placed)
        return output

    def _placed(self, item: Item) -> dict[str, Any]:
        """What a row of tokens is to layers."""
        return {
            "tokens": self._place(item.micro_batch.tokens[item.share.rows]),
            "positions": self._place(item.micro_batch.positions[item.share.rows]),
            "packed_row": place_row(item.share, dtype=self._config.params_dtype, device=self._device),
            "logit_rows": self._place(item.share.logit_rows),
        }

    def _place(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _written(self, item: Item) -> np.ndarray[Any, np.dtype[np.int64]]:
        assert item.routing is not None
        here = routing.gather_written(
            item.routing,
            row_count=len(item.share.rows),
            layer_count=self._config.num_layers,
            topk=self._config.moe_router_topk,
            is_split=self._is_split,
        )
        real = len(item.share.rows) - item.share.padding
        whole = torch.zeros(len(item.micro_batch.tokens), *here.shape[1:], dtype=here.dtype)
        whole[torch.from_numpy(item.share.rows[:real])] = here[:real]
        whole = routing.sum_over(whole, parallel_state.get_context_parallel_group())
        return whole.flatten(1).numpy().astype(np.int64)


def _finished(item: Item, output: Output, finish: Finish) -> tuple[Tensor, Mapping[str, Tensor]]:
    """An item that stands in for one has a gradient of zero everywhere."""
    logits, *further = output if isinstance(output, tuple) else (output,)
    if not item.is_real:
        return torch.stack([each.sum() * 0.0 for each in (logits, *further)]).sum(), {}
    for layer, its_output in zip(item.mtp, further, strict=True):
        layer.output = its_output
    return finish(item, logits)


def join_context(values: Tensor, item: Item) -> Tensor:
    """[M, ...] of this context-parallel rank's rows to [N, ...] of all response tokens, on all of these ranks."""
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return values
    wanted = torch.from_numpy(item.share.wanted).to(values.device)
    joined: Tensor = _JoinContext.apply(values, wanted, len(item.micro_batch.targets), group)  # type: ignore[no-untyped-call]
    return joined


class _JoinContext(torch.autograd.Function):
    """All ranks go on to compute the same loss, so that each keeps the gradient of its own part."""

    @staticmethod
    def forward(context: Any, values: Tensor, wanted: Tensor, count: int, group: Any) -> Tensor:
        context.save_for_backward(wanted)
        joined = values.new_zeros(count, *values.shape[1:])
        joined[wanted] = values
        distributed.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (wanted,) = context.saved_tensors
        return gradient.index_select(0, wanted), None, None, None


def _smallest() -> PackedMicroBatch:
    """For a rank without samples, so that it takes part in what all do."""
    columns = {WEIGHT: np.zeros(1, np.float32)}
    return pack_samples([PackedSample(tokens=np.zeros(2, np.int64), response_length=1, columns=columns)])

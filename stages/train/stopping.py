"""When to stop between two optimizer steps: all ranks at once, if one was told to or the job's time is nearly over."""

from __future__ import annotations

import time

import torch
import torch.distributed as distributed

from slime_stages.drain import begin_drain, drain_reason
from slime_stages.slurm.limits import job_end_time
from stages.train.megatron import parallel

SPARE_SECONDS = 30.0
"""For whatever takes longer than last time."""


class Stopping:
    """Asked before every step, by all ranks; gives them all the same answer."""

    def __init__(self, save_seconds: float) -> None:
        """`save_seconds`: what saving is thought to take."""
        self._save_seconds = save_seconds
        self._asked: float | None = None
        self._longest_step = 0.0

    def __call__(self) -> bool:
        if self._time_is_short():
            begin_drain("the job's time limit is near")
        flag = torch.tensor([drain_reason() is not None], dtype=torch.int32, device=parallel.device())
        if distributed.get_world_size() > 1:
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        if flag.item() and drain_reason() is None:
            begin_drain("another trainer process was told to stop")
        return bool(flag.item())

    def _time_is_short(self) -> bool:
        """Whether another step, and saving, may not fit; never before the first step, which would get us nowhere."""
        now, end = time.time(), job_end_time()
        if self._asked is None:
            self._asked = now
            return False
        self._longest_step = max(self._longest_step, now - self._asked)
        self._asked = now
        return end is not None and now + self._longest_step + self._save_seconds + SPARE_SECONDS > end

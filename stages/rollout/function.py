"""Samples from a function of the user's, in place of everything between the prompts and the rewards.

It works on the prompts of one shard and is called once for each attempt at it; only what it returns is journalled.
Every prompt that it was given is kept, given back, or dropped with a reason.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from numbers import Real
from typing import Any

from slime_stages.config.hooks import uses_engines
from slime_stages.errors import DataError, UsageError
from slime_stages.generation.functions import Group, RolloutFnEvalOutput, RolloutFnTrainOutput, checked_groups, flat
from slime_stages.sample import Status
from slime_stages.serving.models import set_addresses
from slime_stages.stage import Stage, say
from slime_stages.trace.handles import bind_trace
from stages.rollout.engines import ready_engines
from stages.rollout.judging import Verdict
from stages.rollout.shard_work import ShardWork


def generate_by_function(stage: Stage, work: ShardWork, function: Callable[..., Any]) -> dict[str, float]:
    """Have the function finish the work; returns the metrics that it gave."""
    source = WorkDataSource(work, is_traced=stage.config.rollout.trace_samples)
    with ExitStack() as stack:
        served = None
        if uses_engines(stage.config, stage.plan.split):
            with stage.timed("engine"):
                served = stack.enter_context(ready_engines(stage))
        args = _args(stage, work)
        args.data_source = source
        if served is not None:
            set_addresses(args, served)
        with stage.timed("generate"):
            made = function(args, stage.plan.iteration, source, evaluation=stage.plan.split != "train")
            made = asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made
    samples, metrics = _of_training(made) if stage.plan.split == "train" else _of_evaluation(made, stage.plan.split)
    _account(stage, work, source, samples, path=getattr(function, "__qualname__", str(function)))
    return metrics


class WorkDataSource:
    """slime's data source over the prompts of a shard, those handed over to it first."""

    def __init__(self, work: ShardWork, *, is_traced: bool) -> None:
        self._work, self._is_traced = work, is_traced
        self._given_back: list[Group] = []
        self.given: dict[int, Group] = {}
        """Every group that the function got, by prompt."""

    def get_samples(self, num_samples: int) -> list[Group]:
        """The next groups, those that were given back first; fewer, or none, at the end of the shard."""
        again, self._given_back = self._given_back[: max(0, num_samples)], self._given_back[max(0, num_samples) :]
        groups = list(again)
        while len(groups) < num_samples and (group := self._work.next()) is not None:
            self.given[group[0].group_index or 0] = group
            groups.append(group)
            if self._is_traced:
                for sample in group:
                    bind_trace(sample)
        return groups

    def add_samples(self, samples: list[Group]) -> None:
        """Take groups back, to be given again. What is here in the end is left to a later iteration, or dropped."""
        for group in samples:
            places = {sample.group_index for sample in flat(group)} if isinstance(group, list) else set()
            if len(places) != 1 or not places <= self.given.keys():
                raise UsageError(
                    f"a rollout function gave back samples of the prompts {', '.join(map(str, places)) or 'none'}",
                    hint="give back whole groups, each a list of the samples that `get_samples` gave",
                )
        self._given_back += [list(flat(group)) for group in samples]

    def __len__(self) -> int:
        """Prompts that the shard is to keep."""
        return self._work.selection.wanted

    def save(self, rollout_id: int) -> None:
        """Nothing: what comes next follows from the plan."""

    def load(self, rollout_id: int | None = None) -> None:
        """Nothing: what comes next follows from the plan."""

    @property
    def left(self) -> dict[int, Group]:
        """What was given back, by prompt."""
        return {group[0].group_index or 0: group for group in self._given_back}


def _args(stage: Stage, work: ShardWork) -> Any:
    """With the shard's number of prompts for the iteration's: a function asks for as many as it is to return."""
    args = stage.config.as_args()
    missing = work.selection.wanted - len(work.selection.kept)
    over = args.over_sampling_batch_size / args.rollout_batch_size
    args.rollout_batch_size, args.over_sampling_batch_size = missing, max(missing, round(over * missing))
    args.n_samples_per_prompt = stage.plan.n_samples_per_prompt
    args.eval_datasets = [dataset for dataset in args.eval_datasets if dataset.name == stage.plan.split]
    return args


async def _awaited(result: Any) -> Any:
    return await result


def _of_training(made: Any) -> tuple[Any, dict[str, float]]:
    """What a function returned: an object with `samples` and `metrics`, or the samples alone."""
    if isinstance(made, RolloutFnTrainOutput) or hasattr(made, "samples"):
        return made.samples, _numbers(getattr(made, "metrics", None))
    return made, {}


def _of_evaluation(made: Any, name: str) -> tuple[Any, dict[str, float]]:
    """The samples of the data set, with rewards and status as the function says."""
    data, metrics = made, {}
    if isinstance(made, RolloutFnEvalOutput) or hasattr(made, "data"):
        data, metrics = made.data, _numbers(getattr(made, "metrics", None))
    if not isinstance(data, dict) or set(data) != {name} or not isinstance(data[name], dict):
        shown = ", ".join(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise UsageError(
            f"the evaluation function returned {shown or 'nothing'}, not the data set {name}",
            hint=f'return RolloutFnEvalOutput(data={{"{name}": {{"samples": samples, "rewards": rewards}}}})',
        )
    if "samples" not in data[name]:
        raise UsageError(f"the evaluation function returned no samples of {name}", hint='add "samples" to its entry')
    samples = list(flat(data[name]["samples"]))
    for key in ("rewards", "truncated"):
        values = data[name].get(key)
        if values is None:
            continue
        if len(values) != len(samples):
            raise UsageError(f"the evaluation function returned {len(samples)} samples and {len(values)} {key}")
        for sample, value in zip(samples, values, strict=True):
            if key == "rewards" and sample.reward is None:
                sample.reward = value
            elif key == "truncated" and value:
                sample.status = Status.TRUNCATED
    return samples, metrics


def _account(stage: Stage, work: ShardWork, source: WorkDataSource, made: Any, *, path: str) -> None:
    """Record the groups that were made, and say what becomes of every other prompt."""
    carries, count = stage.plan.carry_from is not None, stage.plan.n_samples_per_prompt
    source.get_samples(len(made) - len(source.given) if isinstance(made, list) and not _names_prompts(made) else 0)
    left = source.left
    groups = checked_groups(made, positions=sorted(source.given), samples_per_prompt=count, path=path)
    if not groups:
        raise DataError(f"`{path}` returned no sample for {len(source.given)} prompts", hint="look into its log")
    for group in groups:
        for sample in group:
            if Status(sample.status) is Status.PENDING and sample.response_length:
                sample.status = Status.COMPLETED
        work.record_now(group)
        work.take(group, Verdict(keep=True))
    answered = {group[0].group_index for group in groups}
    for place, group in source.given.items():
        if place in answered:
            continue
        if place in left and carries:
            work.leave(left[place])
        else:
            if place in left and work.source is not None:
                work.source.give_back([left[place]])
            work.take(group, Verdict(keep=False, reason="given_back" if place in left else "not_returned"))
    while not carries and (group := work.next()) is not None:  # type: ignore[assignment]
        work.take(group, Verdict(keep=False, reason="not_asked"))


def _names_prompts(made: list[Any]) -> bool:
    return any(sample.group_index is not None or sample.index is not None for sample in flat(made))


def _numbers(metrics: Any) -> dict[str, float]:
    found = {}
    for name, value in (metrics or {}).items():
        plain = value.item() if hasattr(value, "item") else value
        if isinstance(plain, Real):
            found[str(name)] = float(plain)
        else:
            say(f"warning: the metric {name} of the rollout function is {type(value).__name__}, no number; left out")
    return found

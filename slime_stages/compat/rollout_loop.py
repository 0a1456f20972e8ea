"""slime's own rollout function, for plug-ins that wrap it: groups until enough are kept, or an evaluation.

The rollout stage does the same without it, and knows more: journals, admission, a deadline. Prompts come from the
stage's data source, those of an evaluation too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp

from slime_stages.compat.event_loop import run
from slime_stages.compat.filters import MetricGatherer, call_dynamic_filter, should_drop_dynamic_filter_output
from slime_stages.compat.generation import GenerateState, Group, generate_and_rm
from slime_stages.compat.http import get, post
from slime_stages.errors import RetryableError, UsageError
from slime_stages.generation.functions import RolloutFnEvalOutput, RolloutFnTrainOutput, flat
from slime_stages.plugins import load_function
from slime_stages.sample import Sample, Status
from slime_stages.serving.in_flight import requests_in_flight, tries_of
from slime_stages.serving.models import get_model_url

ABORT_SECONDS = 0.5
"""Between two rounds of ending requests: an engine drops the end of one that it does not know yet."""


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """The rollout of an iteration; what was cut short goes back to the data source."""
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    made, left = run(generate_rollout_async(args, rollout_id, data_source.get_samples))
    if left:
        data_source.add_samples(left)
    return made


async def generate_rollout_async(
    args: Any, rollout_id: int, data_source: Callable[[int], list[Group]]
) -> tuple[RolloutFnTrainOutput, list[Group]]:
    """`rollout_batch_size` kept groups in the order of their prompts, and the groups that were cut short."""
    state = GenerateState(args)
    path, wanted = args.dynamic_sampling_filter_path, args.rollout_batch_size
    dynamic_filter = None if path is None else load_function(path)
    dropped, kept, finished = MetricGatherer(), list[Any](), list[Any]()
    has_more = True
    while len(kept) < wanted:
        while has_more and state.remaining_batch_size < wanted:
            groups = data_source(args.over_sampling_batch_size)
            has_more = bool(groups)
            state.submit_generate_tasks(groups)
        if not state.pendings:
            break
        done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
        for group in (task.result() for task in done):
            finished.append(group)
            answer = call_dynamic_filter(dynamic_filter, args, group)
            size = {"remaining_batch_size": state.remaining_batch_size, "target_data_size": wanted}
            if should_drop_dynamic_filter_output(answer, **size):
                dropped.on_dynamic_filter_drop(answer.reason)
                state.remaining_batch_size -= 1
            elif len(kept) < wanted:
                kept.append(group)
    left = await abort(args, rollout_id)
    state.reset()
    kept, finished = sorted(kept, key=_place), sorted(finished, key=_place)
    apply_rollout_sample_filter(args, kept)
    if args.rollout_all_samples_process_path is not None:
        load_function(args.rollout_all_samples_process_path)(args, finished, data_source)
    return RolloutFnTrainOutput(samples=kept, metrics=dropped.collect()), left


async def abort(args: Any, rollout_id: int) -> list[Group]:
    """End what this process asks; with `partial_rollout` returns the groups, with what the engines had written."""
    state = GenerateState(args)
    state.aborted = True
    if not args.partial_rollout:
        for task in state.pendings:
            task.cancel()
    workers = await _engine_urls(args) if state.pendings else []
    while not all(task.done() for task in state.pendings):
        rids = [each for rid in requests_in_flight() for each in tries_of(rid)]
        requests = [post(f"{url}/abort_request", {"rid": rid}, 1) for url in workers for rid in rids]
        await asyncio.gather(*requests, return_exceptions=True)
        await asyncio.wait(state.pendings, timeout=ABORT_SECONDS)
    tasks, state.pendings = state.pendings, set()
    groups = [group for group in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(group, list)]
    for sample in flat(groups):
        if sample.response_length:
            sample.metadata = {"start_rollout_id": rollout_id, **sample.metadata}
    return groups


async def eval_rollout(args: Any, rollout_id: int) -> tuple[RolloutFnEvalOutput, list[Group]]:
    """All samples of the evaluation sets that `args` has, and nothing that was cut short."""
    data: dict[str, Any] = {}
    for dataset in args.eval_datasets:
        data |= await eval_rollout_single_dataset(args, rollout_id, dataset)
    return RolloutFnEvalOutput(data=data), []


async def eval_rollout_single_dataset(args: Any, rollout_id: int, dataset_cfg: Any) -> dict[str, Any]:
    """`{name: {"rewards": …, "truncated": …, "samples": …}}`."""
    source = getattr(args, "data_source", None)
    if source is None:
        raise UsageError(
            f"the prompts of the evaluation set {dataset_cfg.name} are not at hand here",
            hint="an evaluation function gets them as its third argument, data_source",
        )
    samples = list(flat(source.get_samples(len(source))))
    params = GenerateState(args).sampling_params
    tasks = [
        generate_and_rm(args, sample, {**params, **(sample.sampling_params or {})}, evaluation=True)
        for sample in samples
    ]
    made = list(flat(list(await asyncio.gather(*tasks))))
    key = args.eval_reward_key or args.reward_key
    rewards = [sample.reward[key] if key and isinstance(sample.reward, dict) else sample.reward for sample in made]
    truncated = [Status(sample.status) is Status.TRUNCATED for sample in made]
    return {dataset_cfg.name: {"rewards": rewards, "truncated": truncated, "samples": made}}


def apply_rollout_sample_filter(args: Any, samples: list[Any]) -> None:
    """Let the user's function set `remove_sample` in the kept groups."""
    if args.rollout_sample_filter_path is not None:
        load_function(args.rollout_sample_filter_path)(args, samples)


def call_rollout_fn(fn: Callable[..., Any], *args: Any, evaluation: bool, **kwargs: Any) -> Any:
    """What a rollout function returns, as an object with `samples` or `data`."""
    made = fn(*args, **kwargs, evaluation=evaluation)
    if isinstance(made, RolloutFnTrainOutput | RolloutFnEvalOutput):
        return made
    return RolloutFnEvalOutput(data=made) if evaluation else RolloutFnTrainOutput(samples=made)


def _place(group: Any) -> int:
    first: Sample = next(flat(group))
    return first.index or 0


async def _engine_urls(args: Any) -> list[str]:
    """The engines behind the router; without one, the engine itself."""
    with suppress(aiohttp.ClientError, RetryableError, KeyError, TypeError):
        found = await get(get_model_url(args, "default", "/workers"), max_retries=1)
        return [str(worker["url"]) for worker in found["workers"]]
    return [get_model_url(args, "default", "")]

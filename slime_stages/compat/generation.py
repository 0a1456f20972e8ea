"""Generating samples as slime's plug-ins do it themselves: one, a group, with reward; by the engines that `args` names.

A stage's own generation has its own way; these functions are for rollout functions and generate functions that call
slime's.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from slime_stages.compat.http import get_rollout_num_engines, post
from slime_stages.compat.processing import load_processor, load_tokenizer
from slime_stages.compat.sample_hooks import apply_rollout_sample_hooks
from slime_stages.data.multimodal import request_media
from slime_stages.errors import UsageError
from slime_stages.generation.continuation import continue_response
from slime_stages.generation.functions import flat
from slime_stages.plugins import accepts, load_function
from slime_stages.rewards.hub import async_rm, batched_async_rm
from slime_stages.sample import Sample, Status
from slime_stages.serving.client import GenerateOutput, read_answer
from slime_stages.serving.models import get_model_url
from slime_stages.trace.spans import trace_function, trace_span

SAMPLING = {
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
    "max_new_tokens": "rollout_max_response_len",
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
    "skip_special_tokens": "rollout_skip_special_tokens",
}
"""The engine's parameters, and the settings that they come from."""
READ = (
    *SAMPLING.values(),
    "hf_checkpoint",
    "is_ending",
    "sglang_router_ip",
    "sglang_router_port",
    "sglang_server_concurrency",
)
Group = list[Sample]


class _OncePerSettings(type):
    """One object for the whole process, as in slime, but a new one for other engines or other settings."""

    _latest: Any = None

    def __call__(cls, args: Any) -> Any:
        if cls._latest is None or not cls._latest.is_of(args):
            cls._latest = super().__call__(args)
        return cls._latest


class GenerateState(metaclass=_OncePerSettings):
    """What all samples of a rollout share: tokenizer, sampling parameters, room in the engines."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        self.processor = load_processor(args.hf_checkpoint)
        self.sampling_params: dict[str, Any] = {
            **{name: getattr(args, setting) for name, setting in SAMPLING.items()},
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        self.dp_rank = 0
        self.dp_counts = [0] * (args.sglang_dp_size or 1)
        self._is_ending = getattr(args, "is_ending", bool)
        self._settings = [getattr(args, name, None) for name in READ]
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self.reset()

    def is_of(self, args: Any) -> bool:
        return self._settings == [getattr(args, name, None) for name in READ]

    @property
    def aborted(self) -> bool:
        """Begin nothing more: an abort was asked for, or the stage ends what runs."""
        return self._aborted or bool(self._is_ending())

    @aborted.setter
    def aborted(self, value: bool) -> None:
        self._aborted = value

    @property
    def semaphore(self) -> asyncio.Semaphore:
        """Samples in the engines at a time, of one event loop."""
        room = self.args.sglang_server_concurrency * get_rollout_num_engines(self.args)
        return self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(room))

    @contextmanager
    def dp_rank_context(self) -> Iterator[int]:
        """The data-parallel rank with the fewest samples, for one more."""
        rank = self.dp_rank = self.dp_counts.index(min(self.dp_counts))
        self.dp_counts[rank] += 1
        try:
            yield rank
        finally:
            self.dp_counts[rank] -= 1

    def reset(self) -> None:
        """As before the first sample."""
        self.remaining_batch_size = 0
        self.pendings: set[asyncio.Task[Any]] = set()
        self._aborted = False

    def submit_generate_tasks(self, samples: Sequence[Group]) -> None:
        """Begin groups; their tasks are in `pendings`."""
        for group in samples:
            made = generate_and_rm_group(self.args, group, sampling_params=dict(self.sampling_params))
            self.pendings.add(asyncio.create_task(made))
        self.remaining_batch_size += len(samples)


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """One call to the engine, which goes on from the tokens that are there."""
    if Status(sample.status) not in (Status.PENDING, Status.ABORTED):
        raise ValueError(f"sample {sample.index} is {sample.status} already")
    state = GenerateState(args)
    if not sample.tokens:
        sample.tokens = prompt_ids(sample, state)

    async def ask(params: dict[str, Any], extra: dict[str, Any]) -> GenerateOutput:
        rid = f"{sample.session_id or sample.index}-{uuid.uuid4().hex[:8]}"
        prompt = request_media(sample) or {"input_ids": sample.tokens}
        payload = {**prompt, "sampling_params": params, "return_logprob": True, "rid": rid, **extra}
        headers = {"X-SMG-Routing-Key": sample.session_id} if sample.session_id else None
        return read_answer(await post(get_model_url(args, "default"), payload, headers=headers), rid)

    return await continue_response(args, sample, sampling_params, ask=ask, decode=state.tokenizer.decode)


def prompt_ids(sample: Sample, state: GenerateState) -> list[int]:
    """The tokens of a prompt that is text; with images, those that the processor makes of it."""
    if not isinstance(sample.prompt, str):
        raise UsageError(
            "the prompt is chat messages and has no tokens", hint="add --apply-chat-template, or fill in sample.tokens"
        )
    media = {kind: items for kind, items in (sample.multimodal_inputs or {}).items() if items}
    if state.processor is None or not media:
        return list(state.tokenizer.encode(sample.prompt, add_special_tokens=False))
    return [int(token) for token in state.processor(text=[sample.prompt], **media)["input_ids"][0]]


@trace_function("generate_and_rm", target="sample")
async def generate_and_rm(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | Group:
    """Generate a sample, by the user's function if there is one, and score it unless its group is scored as one."""
    if args.partial_rollout and args.mask_offpolicy_in_partial_rollout and sample.response_length:
        sample.loss_mask = [0] * sample.response_length
    if Status(sample.status) in (Status.COMPLETED, Status.TRUNCATED):
        return sample
    state = GenerateState(args)
    async with state.semaphore:
        if state.aborted:
            sample.status = Status.ABORTED
            return sample
        with state.dp_rank_context():
            made: Sample | Group = await _generated(args, sample, sampling_params, evaluation)
    made = await apply_rollout_sample_hooks(args, made, evaluation=evaluation)
    if not args.group_rm:
        await _score(args, made)
    return made


@trace_function("generate_and_rm_group", target="group")
async def generate_and_rm_group(
    args: Any, group: Group, sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Any]:
    """The samples of a prompt, beside one another; each may become a list of samples."""
    state = GenerateState(args)
    if state.aborted:
        return group
    is_seeded = bool(args.sglang_enable_deterministic_inference)
    tasks = []
    for number, sample in enumerate(group):
        sample.session_id = sample.session_id or str(uuid.uuid4())
        params = {**sampling_params, **({"sampling_seed": args.rollout_seed + number} if is_seeded else {})}
        tasks.append(generate_and_rm(args, sample, params, evaluation=evaluation))
    made = list(await asyncio.gather(*tasks))
    if args.group_rm and not state.aborted:
        samples = list(flat(made))
        with trace_span(samples, "group_reward_model"):
            rewards = await batched_async_rm(args, samples)
        for sample, reward in zip(samples, rewards, strict=True):
            sample.reward = reward
    return made


async def _generated(args: Any, sample: Sample, params: dict[str, Any], evaluation: bool) -> Any:
    path = sample.generate_function_path or args.custom_generate_function_path
    if path is None:
        return await generate(args, sample, params)
    function = load_function(path)
    made = function(args, sample, params, **({"evaluation": evaluation} if accepts(function, "evaluation") else {}))
    return await made if inspect.isawaitable(made) else made


async def _score(args: Any, made: Any) -> None:
    """Rewards that are there already stay; what was cut short has none."""
    samples = made if isinstance(made, list) else [made]
    unscored = [sample for sample in samples if sample.reward is None]
    if not unscored or any(Status(sample.status) is Status.ABORTED for sample in samples):
        return
    with trace_span(unscored, "reward_model"):
        is_single = not isinstance(made, list)
        rewards = [await async_rm(args, made)] if is_single else await batched_async_rm(args, unscored)
    for sample, reward in zip(unscored, rewards, strict=True):
        sample.reward = reward

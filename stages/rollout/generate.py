"""One sample after the other: from a call to the engine, or from the user's function; cut short on demand."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slime_stages.data.decoding import Decoder
from slime_stages.data.multimodal import request_media
from slime_stages.data.weight_spans import SPANS_KEY
from slime_stages.errors import SlimeStagesError, UsageError
from slime_stages.generation.continuation import continue_response
from slime_stages.plugins import accepts
from slime_stages.sample import Sample, Status
from slime_stages.stage import Stage
from slime_stages.trace.handles import bind_trace, share_trace
from slime_stages.trace.spans import trace_span
from stages.rollout.selection import UNFINISHED

if TYPE_CHECKING:
    from slime_stages.serving.client import EngineClient, GenerateOutput

GenerateFn = Callable[..., Any]
START_KEY = "start_rollout_id"
"""In the metadata of a response that was cut short: the iteration that began it."""


class Requests:
    """The requests for samples, and whether they are being ended."""

    def __init__(self) -> None:
        self.is_ending = False
        """Whatever is answered from now on was cut short."""

    def new_id(self, sample: Sample) -> str:
        """Begins with the session's id; an engine refuses one that it still works on for an attempt that was killed."""
        return f"{sample.session_id or sample.index}-{uuid.uuid4().hex[:8]}"


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Makes of a sample that is to be asked the one, or the several, that it becomes."""

    stage: Stage
    args: Any
    limit: asyncio.Semaphore
    """Samples at a time."""
    generate: GenerateFn
    hooks: Sequence[GenerateFn]
    requests: Requests = field(default_factory=Requests)
    _extra: dict[str, bool] = field(init=False)
    """What the generate function takes besides."""

    def __post_init__(self) -> None:
        is_evaluation = self.stage.call.split != "train"
        self._extra = {"evaluation": is_evaluation} if accepts(self.generate, "evaluation") else {}

    async def __call__(self, sample: Sample, answered: Callable[[], None]) -> list[Sample]:
        """A finished sample stays as it is. What is cut short comes back as it was, or further on, and unfinished."""
        if Status(sample.status) not in UNFINISHED:
            answered()
            return [sample]
        before = copy.deepcopy(sample) if self.stage.plan.carry_from is not None else sample
        async with self.limit:
            if self.requests.is_ending:
                answered()
                return [sample]
            self._mask_old_tokens(sample)
            made = await self._generated(sample)
        answered()
        if made is None:
            return [before]
        if self.requests.is_ending and any(Status(item.status) in UNFINISHED for item in made):
            return [self._resumable(made, before)]
        for item in made:
            self._mask_spans(item)
        for hook in self.hooks:
            made = [await _hooked(hook, self.args, item, self.stage) for item in made]
        return made

    def _mask_old_tokens(self, sample: Sample) -> None:
        """Tokens of other weights are not trained on, if that is asked for."""
        is_other = sample.weight_versions[-1:] != [str(self.stage.plan.policy_version)]
        if self.stage.config.rollout.mask_offpolicy_in_partial_rollout and sample.response_length and is_other:
            sample.loss_mask = [0] * sample.response_length

    def _mask_spans(self, sample: Sample) -> None:
        """The same, where the weights changed while it was answered."""
        spans: list[Any] = sample.metadata.get(SPANS_KEY) or []
        if not self.stage.config.rollout.mask_offpolicy_in_partial_rollout or sample.loss_mask is None:
            return
        for version, start, stop in spans:
            if version != spans[-1][0]:
                sample.loss_mask[start:stop] = [0] * (stop - start)

    def _resumable(self, made: list[Sample], before: Sample) -> Sample:
        """The sample to go on with. A fan-out has no one point to go on from: it begins anew."""
        is_further = len(made) == 1 and made[0].rollout_id == before.rollout_id
        if not is_further or made[0].response_length == before.response_length:
            return before
        made[0].status = Status.ABORTED
        made[0].metadata = {START_KEY: self.stage.plan.iteration, **made[0].metadata}
        return made[0]

    async def _generated(self, sample: Sample) -> list[Sample] | None:
        """What the generate function made of a sample; None if it failed when it was cut short.

        Its own error is recorded, not passed on: the rest goes on.
        """
        started, earlier = time.monotonic(), sample.generate_seconds or 0.0
        if self.stage.config.rollout.trace_samples:
            bind_trace(sample)
        try:
            with trace_span(sample, "generate"):
                made = self.generate(self.args, sample, dict(sample.sampling_params or {}), **self._extra)
                made = await made if inspect.isawaitable(made) else made
        except SlimeStagesError:
            if self.requests.is_ending:
                return None
            raise
        except Exception as error:  # a plug-in may raise anything
            return None if self.requests.is_ending else [_failed(sample, f"{type(error).__name__}: {error}")]
        siblings = checked_siblings(made, sample)
        share_trace(sample, siblings)
        for item in siblings:
            item.generate_seconds = earlier + time.monotonic() - started
        return siblings


def checked_siblings(made: Any, sample: Sample) -> list[Sample]:
    """The samples of one execution, which share its id. One that made none leaves a sample that is not trained on."""
    siblings = made if isinstance(made, list) else [made]
    if not all(isinstance(item, Sample) for item in siblings):
        kinds = ", ".join(sorted({type(item).__name__ for item in siblings}))
        raise UsageError(
            f"the generate function returned {kinds}", hint="return a Sample, or a list of Samples for a fan-out"
        )
    if not siblings:
        siblings = [_failed(sample, "the generate function returned no sample")]
    for item in siblings:
        item.group_index = sample.group_index
        item.index = sample.index if item.index is None else item.index
        if isinstance(made, list) and item.rollout_id is None:
            item.rollout_id = sample.index
    if len(ids := {item.rollout_id for item in siblings}) > 1:
        raise UsageError(
            f"the generate function returned samples of one execution with different ids: {sorted(map(str, ids))}",
            hint="siblings of a fan-out share their rollout_id; leave it None",
        )
    return siblings


def default_generate(clients: list[EngineClient], decode: Decoder, requests: Requests) -> GenerateFn:
    """One call to the engine, which goes on from the tokens that are there."""

    async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        if not sample.tokens:
            raise UsageError(
                "the prompts are chat messages and no chat template is applied",
                hint="add --apply-chat-template, or a --custom-generate-function-path that takes messages",
            )

        async def ask(params: dict[str, Any], extra: dict[str, Any]) -> GenerateOutput:
            return await client_of(clients, sample).generate(
                sample.tokens,
                params,
                rid=requests.new_id(sample),
                routing_key=sample.session_id,
                media=request_media(sample),
                extra=extra,
            )

        return await continue_response(args, sample, sampling_params, ask=ask, decode=decode)

    return generate


def client_of(clients: list[EngineClient], sample: Sample) -> EngineClient:
    """The samples of a prompt go to one engine."""
    return clients[(sample.group_index or 0) % len(clients)]


async def _hooked(hook: GenerateFn, args: Any, sample: Sample, stage: Stage) -> Sample:
    given = {"rollout_id": stage.plan.iteration, "evaluation": stage.call.split != "train"}
    result = hook(args, sample, **{name: value for name, value in given.items() if accepts(hook, name)})
    result = await result if inspect.isawaitable(result) else result
    if result is None:
        return sample
    if not isinstance(result, Sample):
        raise UsageError(f"the sample hook {hook.__name__} returned {type(result).__name__}, not a Sample or None")
    return result


def _failed(sample: Sample, reason: str) -> Sample:
    sample.status = Status.FAILED
    sample.remove_sample = True
    sample.metadata = {**sample.metadata, "error": reason[:2000]}
    return sample

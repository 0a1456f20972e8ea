"""Asking the engine: new samples of a prompt, the default generate function, and a whole shard of groups at once."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_stages.config import Config
from slime_stages.decoding import Decoder, load_decoder
from slime_stages.errors import SlimeStagesError, UsageError
from slime_stages.plan import Plan
from slime_stages.plugins import accepts, load_function
from slime_stages.progress import Progress
from slime_stages.prompts.order import prompt_at, sample_index, sampling_seed
from slime_stages.prompts.table import PromptTable
from slime_stages.sample import Sample, Status
from slime_stages.sampling import sampling_of
from slime_stages.serving.served import Served
from slime_stages.slurm.limits import job_end_time
from slime_stages.stage import Stage
from stages.rollout.admission import Admission, Deadline
from stages.rollout.engines import host_and_port, vocabulary_size

if TYPE_CHECKING:
    from slime_stages.serving.client import EngineClient

GENERATE_SIGNATURE = "generate(args, sample, sampling_params)"
GenerateFn = Callable[..., Any]
CONNECT_SECONDS = 5.0


def new_group(plan: Plan, config: Config, prompts: PromptTable, position: int) -> list[Sample]:
    """The samples to ask for at one prompt position: a pure function of its arguments."""
    _, row = prompt_at(position, len(prompts), plan.seed, plan.shuffle)
    prompt = prompts.row(row)
    token_ids = [] if prompt.prompt_token_ids is None else [int(token) for token in prompt.prompt_token_ids]
    sampling = sampling_of(config, plan.split)
    group = []
    for number in range(plan.n_samples_per_prompt):
        seed = sampling_seed(plan.seed, plan.iteration, position, number)
        index = sample_index(position, number, plan.n_samples_per_prompt)
        group.append(
            Sample(
                group_index=position,
                index=index,
                prompt=prompt.prompt,
                tokens=list(token_ids),
                label=prompt.label,
                metadata=copy.deepcopy(prompt.metadata),
                prompt_id=prompt.prompt_id,
                session_id=f"{plan.run_id}-{plan.split}-{plan.iteration}-{index}",
                sampling_params=sampling.params(seed),
            )
        )
    return group


@dataclass(slots=True, kw_only=True)
class Generation:
    """All groups of a shard, asked for as the engines have room and recorded as each is finished."""

    stage: Stage
    served: Served
    """The engines; samples of one session go to one of them."""
    generate: GenerateFn | None
    """None: one call to the engine for each sample."""
    record: Callable[[list[Sample]], None]
    """Called with each finished group, so that it survives a kill."""

    async def finish(self, groups: list[list[Sample]], *, already_done: int) -> list[list[Sample]]:
        """Every group with its responses, in the order given; `Drained` if the job ends before.

        One group is one task; its samples run together.
        """
        tokens, started, total = 0, time.monotonic(), already_done + len(groups)
        job_end = await asyncio.to_thread(job_end_time)
        async with self._clients() as clients:
            with Progress(self.stage.call.title, total=total, unit="groups") as progress:
                progress.update(already_done)

                def record(group: list[Sample]) -> None:
                    nonlocal tokens
                    self.record(group)
                    tokens += sum(sample.response_length for sample in group)
                    rate = tokens / (time.monotonic() - started)
                    progress.advance(tokens_per_second=f"{rate:.0f}")

                admission = Admission(
                    room=self._room,
                    deadline=Deadline(job_end=job_end, group_count=total),
                    ask=self._asking(clients),
                    record=record,
                    is_served=self._is_served,
                )
                return await admission.run(groups)

    def _asking(self, clients: list[EngineClient]) -> Callable[..., Coroutine[Any, Any, list[Sample]]]:
        """A function that asks for a group: `ask(samples, answered)`."""
        rollout = self.stage.config.rollout
        args = self.stage.config.as_args()
        args.sglang_router_ip, args.sglang_router_port = host_and_port(self.served.urls[0])
        limit = asyncio.Semaphore(self._room)
        hooks = [load_function(path, like="hook(args, sample)") for path in rollout.rollout_sample_hook_path]
        decode = load_decoder(self._weights, skip_special_tokens=rollout.rollout_skip_special_tokens)
        generate = self.generate or _default_generate(clients, decode)

        async def one(sample: Sample, answered: Callable[[], None]) -> list[Sample]:
            async with limit:
                made = await self._generated(generate, args, sample)
            answered()
            for hook in hooks:
                made = [await _hooked(hook, args, item, self.stage) for item in made]
            return made

        async def ask(samples: list[Sample], answered: Callable[[], None]) -> list[Sample]:
            if self.generate is None and len(samples) > 1:
                await _prefill(clients, samples[0], limit)
            made = await asyncio.gather(*(one(sample, answered) for sample in samples))
            return [sample for siblings in made for sample in siblings]

        return ask

    @property
    def _room(self) -> int:
        """Samples that the engines take at a time."""
        return self.stage.config.serving.sglang_server_concurrency * self.served.engine_count

    async def _is_served(self) -> bool:
        """Whether an engine still takes connections."""
        for url in self.served.urls:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, writer = await asyncio.open_connection(*host_and_port(url))
                writer.close()
                return True
        return False

    @property
    def _weights(self) -> Path:
        return self.stage.run.weights_path(self.stage.plan.policy_version)

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[list[EngineClient]]:
        """A client of each engine."""
        from slime_stages.serving.client import EngineClient

        serving, vocab_size = self.stage.config.serving, vocabulary_size(self._weights)
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    EngineClient(
                        url,
                        vocab_size=vocab_size,
                        concurrency=serving.sglang_server_concurrency,
                        timeout_seconds=serving.request_timeout_seconds,
                    )
                )
                for url in self.served.urls
            ]

    async def _generated(self, generate: GenerateFn, args: Any, sample: Sample) -> list[Sample]:
        """What the generate function made of a sample. Its own error is recorded, not passed on: the rest goes on."""
        extra = {"evaluation": self.stage.call.split != "train"} if accepts(generate, "evaluation") else {}
        started = time.monotonic()
        try:
            made = generate(args, sample, dict(sample.sampling_params or {}), **extra)
            made = await made if inspect.isawaitable(made) else made
        except SlimeStagesError:
            raise
        except Exception as error:  # a plug-in may raise anything
            return [_failed(sample, error)]
        siblings = made if isinstance(made, list) else [made]
        if not all(isinstance(item, Sample) for item in siblings):
            kinds = ", ".join(sorted({type(item).__name__ for item in siblings}))
            raise UsageError(
                f"the generate function returned {kinds}", hint="return a Sample, or a list of Samples for a fan-out"
            )
        for item in siblings:
            item.generate_seconds = time.monotonic() - started
            if isinstance(made, list) and item.rollout_id is None:
                item.rollout_id = sample.index
        return siblings


async def _prefill(clients: list[EngineClient], sample: Sample, limit: asyncio.Semaphore) -> None:
    """Have a group's prompt computed once, so that its samples find it in the prefix cache."""
    if sample.tokens:
        async with limit:
            client = client_of(clients, sample)
            await client.prefill(sample.tokens, rid=request_id(sample), routing_key=sample.session_id)


def request_id(sample: Sample) -> str:
    """Begins with the session's id; an engine refuses one that it still works on for an attempt that was killed."""
    return f"{sample.session_id or sample.index}-{uuid.uuid4().hex[:8]}"


def client_of(clients: list[EngineClient], sample: Sample) -> EngineClient:
    """The samples of a prompt go to one engine."""
    return clients[(sample.group_index or 0) % len(clients)]


def _default_generate(clients: list[EngineClient], decode: Decoder) -> GenerateFn:
    async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        if not sample.tokens:
            raise UsageError(
                "the prompts are chat messages and no chat template is applied",
                hint="add --apply-chat-template, or a --custom-generate-function-path that takes messages",
            )
        answer = await client_of(clients, sample).generate(
            sample.tokens, sampling_params, rid=request_id(sample), routing_key=sample.session_id
        )
        sample.append_response_tokens(
            args,
            tokens=answer.output_ids,
            log_probs=answer.output_log_probs,
            meta_info=answer.meta_info,
            text=answer.text or decode(answer.output_ids),
        )
        return sample

    return generate


async def _hooked(hook: GenerateFn, args: Any, sample: Sample, stage: Stage) -> Sample:
    given = {"rollout_id": stage.plan.iteration, "evaluation": stage.call.split != "train"}
    result = hook(args, sample, **{name: value for name, value in given.items() if accepts(hook, name)})
    result = await result if inspect.isawaitable(result) else result
    if result is None:
        return sample
    if not isinstance(result, Sample):
        raise UsageError(f"the sample hook {hook.__name__} returned {type(result).__name__}, not a Sample or None")
    return result


def _failed(sample: Sample, error: Exception) -> Sample:
    sample.status = Status.FAILED
    sample.remove_sample = True
    sample.metadata = {**sample.metadata, "error": f"{type(error).__name__}: {error}"[:2000]}
    return sample

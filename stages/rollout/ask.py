"""Asking the engines for the groups of a shard, and having them answer with what they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_stages.config import Config
from slime_stages.data.decoding import load_decoder
from slime_stages.errors import SlimeStagesError
from slime_stages.generation.sampling import generate_path_of
from slime_stages.plugins import load_function
from slime_stages.rewards.scoring import Scorer
from slime_stages.sample import Sample
from slime_stages.serving.models import set_addresses
from slime_stages.serving.served import Served
from slime_stages.slurm.limits import job_end_time
from slime_stages.stage import Stage
from stages.rollout.admission import Admission
from stages.rollout.deadline import Deadline
from stages.rollout.engines import host_and_port, vocabulary_size
from stages.rollout.generate import GenerateFn, Requests, Sampler, client_of, default_generate
from stages.rollout.judging import Judge
from stages.rollout.shard_work import ShardWork

if TYPE_CHECKING:
    from slime_stages.serving.client import EngineClient

GENERATE_SIGNATURE = "generate(args, sample, sampling_params, [evaluation])"
CONNECT_SECONDS = 5.0
ABORT_SECONDS = 0.5
"""Between two rounds of ending what runs: a request may be on its way when the first one comes."""


def own_generate(config: Config, split: str) -> GenerateFn | None:
    """The user's function that makes a sample; None for one call to the engine."""
    path = generate_path_of(config, split)
    return load_function(path, like=GENERATE_SIGNATURE) if path else None


@dataclass(slots=True, kw_only=True)
class Generation:
    """Asks for the groups of a shard, as the engines have room."""

    stage: Stage
    served: Served
    """The engines; samples of one session go to one of them."""
    generate: GenerateFn | None
    """None: one call to the engine for each sample."""
    _sampler: Sampler | None = None

    async def finish(self, work: ShardWork) -> None:
        """Until the work is done, or has nothing more to begin; `Drained` if the job ends before."""
        async with self.admission(work) as admission:
            await admission.run()

    def go_on(self, stage: Stage) -> None:
        """What is asked from here on is asked for another shard."""
        self.stage = stage
        if self._sampler is not None:
            self._sampler.stage = stage

    @asynccontextmanager
    async def admission(self, work: ShardWork) -> AsyncIterator[Admission]:
        """What runs the groups of a work, with connections to the engines."""
        job_end = await asyncio.to_thread(job_end_time)
        carries = self.stage.plan.carry_from is not None
        async with self._clients() as clients, self._control_clients() as controls:
            with Scorer(self.stage.config) as scorer:
                requests = Requests()
                yield Admission(
                    room=self._room,
                    deadline=Deadline(job_end=job_end, group_count=work.selection.wanted),
                    work=work,
                    ask=self._asking(clients, requests),
                    judge=Judge.of(self.stage.config, scorer, is_asked=work.is_judged),
                    is_served=self._is_served,
                    abort=self._aborting(controls, requests) if carries else None,
                    saves_unfinished=self.stage.config.rollout.partial_rollout,
                )

    def _asking(
        self, clients: list[EngineClient], requests: Requests
    ) -> Callable[..., Coroutine[Any, Any, list[Sample]]]:
        """A function that asks for a group: `ask(samples, answered)`."""
        rollout = self.stage.config.rollout
        args = self.stage.config.as_args()
        set_addresses(args, self.served)
        args.is_ending = lambda: requests.is_ending
        weights = self.stage.run.weights_path(self.stage.plan.policy_version)
        if args.use_rollout_routing_replay:
            set_router_shape(args, weights)
        decode = load_decoder(weights, skip_special_tokens=rollout.rollout_skip_special_tokens)
        self._sampler = sampler = Sampler(
            stage=self.stage,
            args=args,
            limit=asyncio.Semaphore(self._room),
            generate=self.generate or default_generate(clients, decode, requests),
            hooks=[
                load_function(path, like="hook(args, sample, [rollout_id], [evaluation])")
                for path in rollout.rollout_sample_hook_path
            ],
            requests=requests,
        )

        async def ask(samples: list[Sample], answered: Callable[[], None]) -> list[Sample]:
            is_new = all(sample.response_length == 0 for sample in samples)
            if self.generate is None and len(samples) > 1 and is_new and not requests.is_ending:
                await _prefill(clients, samples[0], sampler.limit, requests)
            made = await asyncio.gather(*(sampler(sample, answered) for sample in samples))
            return [sample for siblings in made for sample in siblings]

        return ask

    def _aborting(self, controls: list[EngineClient], requests: Requests) -> Callable[[], Coroutine[Any, Any, None]]:
        """A function that has engines answer with what they have, again and again."""
        from slime_stages.serving.in_flight import requests_in_flight

        async def abort() -> None:
            requests.is_ending = True
            while True:
                if self.served.is_exclusive:
                    calls = [client.abort_all() for client in controls]
                else:
                    calls = [client.abort(rid) for client in controls for rid in requests_in_flight()]
                await asyncio.gather(*calls, return_exceptions=True)
                await asyncio.sleep(ABORT_SECONDS)

        return abort

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

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[list[EngineClient]]:
        """A client of each address."""
        async with self._clients_of(self.served.urls, weight_version=self.served.weight_version) as clients:
            yield clients

    @asynccontextmanager
    async def _control_clients(self) -> AsyncIterator[list[EngineClient]]:
        """Clients of the engines themselves, with connections of their own: the others' are busy when one aborts."""
        async with self._clients_of(self.served.engine_urls or self.served.urls) as clients:
            yield clients

    @asynccontextmanager
    async def _clients_of(
        self, urls: tuple[str, ...], *, weight_version: str | None = None
    ) -> AsyncIterator[list[EngineClient]]:
        from slime_stages.serving.client import EngineClient

        serving = self.stage.config.serving
        vocab_size = vocabulary_size(self.stage.run.weights_path(self.stage.plan.policy_version))
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    EngineClient(
                        url,
                        vocab_size=vocab_size,
                        concurrency=serving.sglang_server_concurrency,
                        timeout_seconds=serving.request_timeout_seconds,
                        weight_version=weight_version,
                    )
                )
                for url in urls
            ]


def set_router_shape(args: Any, weights: Path) -> None:
    """slime's names for what the engine's record of experts is made of."""
    from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout

    layout = weight_layout(read_huggingface_config(weights))
    args.num_layers, args.moe_router_topk = layout.num_layers, layout.experts.per_token if layout.experts else 0


async def _prefill(clients: list[EngineClient], sample: Sample, limit: asyncio.Semaphore, requests: Requests) -> None:
    """Have a group's prompt computed once, so that its samples find it in the prefix cache."""
    if not sample.tokens or sample.multimodal_inputs:
        return
    async with limit:
        client, rid = client_of(clients, sample), requests.new_id(sample)
        try:
            await client.prefill(sample.tokens, rid=rid, routing_key=sample.session_id)
        except SlimeStagesError:
            if not requests.is_ending:
                raise

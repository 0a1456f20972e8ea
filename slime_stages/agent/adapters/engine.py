"""The engine as adapters ask it: by token ids, within a session's budget, and told to stop when nobody waits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import aiohttp

from slime_stages.agent.adapters.errors import RequestError
from slime_stages.agent.adapters.sessions import DEFAULT, Session
from slime_stages.agent.adapters.turn import Constraint, Question
from slime_stages.agent.parsing.constraints import GRAMMARS
from slime_stages.agent.trajectory import TurnRecord
from slime_stages.errors import DataError, RetryableError
from slime_stages.serving.client import EngineClient
from slime_stages.serving.in_flight import in_flight

SAMPLING = {
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "no_stop_trim": True,
    "max_new_tokens": 4096,
}
"""Where neither the session nor the request says otherwise."""
ABORT_PAUSES_SECONDS = (0.0, 0.5, 1.0, 2.0)
"""An engine drops an abort of a request that it does not know yet, so it is told again."""
ABORT_TIMEOUT_SECONDS = 5.0
LAST_ABORTS_SECONDS = 1.0
"""How long the aborts may go on that are under way when the adapter stops."""
MOST_REQUESTS = 4096


class AdapterEngine:
    """An engine, or the router before several; use it in `async with`, in the loop of the adapter's server."""

    def __init__(self, url: str, *, vocab_size: int, timeout_seconds: float, asks_experts: bool) -> None:
        self.url = url
        self._asks_experts = asks_experts
        self._client = EngineClient(
            url, vocab_size=vocab_size, concurrency=MOST_REQUESTS, timeout_seconds=timeout_seconds
        )
        self._aborts: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AdapterEngine:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=LAST_ABORTS_SECONDS)
        for task in self._aborts:
            task.cancel()
        await self._client.__aexit__(None, None, None)

    async def answer(
        self, prompt_ids: Sequence[int], question: Question, constraint: Constraint, session: Session
    ) -> TurnRecord:
        """What the model says. RequestError if the engine refuses, or cannot; a request that nobody waits for ends."""
        room = session.max_context_tokens - len(prompt_ids) if session.max_context_tokens else None
        if room is not None and room <= 0:
            return TurnRecord(prompt_ids, [], "length", [])
        rid, key = uuid.uuid4().hex, session.id
        params = sampling_params(session.sampling_defaults, question, constraint, room)
        with in_flight(rid) as tries:
            try:
                output = await self._client.generate(
                    prompt_ids,
                    params,
                    rid=rid,
                    routing_key=key if key != DEFAULT else None,
                    extra={name: True for name, is_asked in self._extra(constraint).items() if is_asked},
                )
            except DataError as error:
                raise RequestError(400, error.message) from error
            except RetryableError as error:
                self._abort(tries)
                raise RequestError(503, error.message) from error
            except asyncio.CancelledError:
                self._abort(tries)
                raise
        if output.finish_reason == "abort":
            raise RequestError(503, "the engine was told to end its requests")
        return TurnRecord(
            prompt_ids,
            output.output_ids,
            output.finish_reason,
            output.output_log_probs,
            meta_info=output.meta_info,
            is_constrained=any(params.get(name) for name in GRAMMARS),
        )

    def _extra(self, constraint: Constraint) -> dict[str, bool]:
        return {"return_routed_experts": self._asks_experts, "require_reasoning": constraint.is_thinking}

    def _abort(self, rids: Sequence[str]) -> None:
        task = asyncio.create_task(self._aborted(rids))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _aborted(self, rids: Sequence[str]) -> None:
        timeout = aiohttp.ClientTimeout(total=ABORT_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            for pause in ABORT_PAUSES_SECONDS:
                await asyncio.sleep(pause)
                for url, rid in product(await self._engine_urls(http), rids):
                    with suppress(aiohttp.ClientError, TimeoutError):
                        async with http.post(f"{url}/abort_request", json={"rid": rid}):
                            pass

    async def _engine_urls(self, http: aiohttp.ClientSession) -> list[str]:
        """A router passes no abort on, but it says which engines are behind it."""
        with suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            async with http.get(f"{self.url}/workers") as response:
                if response.status == 200:
                    return [worker["url"] for worker in (await response.json())["workers"]]
        return [self.url]


def sampling_params(
    defaults: Mapping[str, Any], question: Question, constraint: Constraint, room: int | None
) -> dict[str, Any]:
    """The session's defaults, with what the request says; no more tokens than either allows, or there is `room` for."""
    params = {**SAMPLING, **defaults}
    limits = [params["max_new_tokens"], question.max_tokens, room]
    params["max_new_tokens"] = min(limit for limit in limits if limit is not None)
    if "min_new_tokens" in params:
        params["min_new_tokens"] = min(params["min_new_tokens"], params["max_new_tokens"])
    asked = {"temperature": question.temperature, "top_p": question.top_p, "top_k": question.top_k}
    params |= {name: value for name, value in asked.items() if value is not None}
    if question.stop:
        params["stop"] = list(question.stop)
    if constraint.params:
        params = {name: value for name, value in params.items() if name not in GRAMMARS} | dict(constraint.params)
    return params

"""The adapter behind every protocol: sessions, the one way of a turn, and the samples of a session that is over."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from aiohttp import web

from slime_stages.agent.adapters.endpoint import Endpoint
from slime_stages.agent.adapters.engine import AdapterEngine
from slime_stages.agent.adapters.errors import RequestError
from slime_stages.agent.adapters.http import EVENTS, EventStream, deliver_object, errors_as, read_object
from slime_stages.agent.adapters.sessions import Session, Sessions
from slime_stages.agent.adapters.texts import Texts
from slime_stages.agent.adapters.turn import Message, Question, Reply, routed_by
from slime_stages.agent.parsing import AnswerParser
from slime_stages.agent.trajectory import DEFAULT_FORK_THRESHOLD, TrajectoryManager, TurnRecord
from slime_stages.sample import Sample
from slime_stages.trace.handles import take_over
from slime_stages.trace.spans import trace_span

logger = logging.getLogger(__name__)
MODEL = "slime-actor"
LARGEST_BODY_BYTES = 64 * 1024 * 1024
DebugCallback = Callable[[str, list[Message], list[dict[str, Any]], Message, TurnRecord], None]


class BaseAdapter(ABC):
    """An HTTP server, `app`, that answers as a vendor's does; run it by `run_app_in_thread`, or as any aiohttp app.

    A client names its session by its API key. Sessions may be opened and finished from another thread than the app's.
    """

    call_prefix: ClassVar[str]
    """Of the ids of tool calls."""

    def __init__(
        self,
        tokenizer: Any,
        sglang_url: str,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        max_turns_per_sid: int | None = None,
        fork_threshold_tokens: int | None = None,
        debug_callback: DebugCallback | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        known_sessions_only: bool = False,
        omit_images: bool = False,
        expert_shape: tuple[int, int] | None = None,
        timeout_seconds: float = 3600.0,
        ping_seconds: float = 15.0,
    ) -> None:
        """UsageError for a parser that SGLang does not have.

        `known_sessions_only`: refuse sessions that nobody opened. `omit_images`: say `[image omitted]` in the place of
        an image, which is refused otherwise. `expert_shape`: record the router's choices, layers × experts per token.
        `ping_seconds`: how often a client that streams is told that its answer is still to come.
        """
        threshold = DEFAULT_FORK_THRESHOLD if fork_threshold_tokens is None else fork_threshold_tokens
        self.sglang_url = sglang_url.rstrip("/").removesuffix("/generate")
        self.omit_images = omit_images
        self.debug_callback = debug_callback
        self.manager = TrajectoryManager(threshold, expert_shape=expert_shape)
        self.timeout_seconds = timeout_seconds
        self.ping_seconds = ping_seconds
        self.texts = Texts(tokenizer, AnswerParser(tool_parser, reasoning_parser), chat_template_kwargs or {})
        self.sessions = Sessions(max_turns=max_turns_per_sid, known_only=known_sessions_only)
        self._engine: AdapterEngine | None = None
        self.app = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[errors_as(self.error_body)])
        self.app.cleanup_ctx.append(self._with_engine)
        self.app.router.add_get("/healthz", _healthy)
        self.app.router.add_get("/v1/models", _healthy)
        for endpoint in self.endpoints():
            self.app.router.add_post(endpoint.path, self._answering(endpoint))

    @abstractmethod
    def endpoints(self) -> Sequence[Endpoint[Any]]:
        """The routes of the protocols that it speaks."""

    @abstractmethod
    def error_body(self, status: int, message: str) -> dict[str, Any]:
        """An error as the protocol's own object."""

    def open_session(
        self, sid: str, *, sampling_defaults: Mapping[str, Any] | None = None, max_context_tokens: int | None = 0
    ) -> None:
        """Announce a run of an agent. ValueError if the id was used before."""
        self.sessions.open(sid, sampling_defaults, max_context_tokens or 0)

    async def finish_session(
        self,
        sid: str,
        *,
        base_sample: Sample,
        reward: float | dict[str, Any] | None = 0.0,
        extra_metadata: Mapping[str, Any] | None = None,
        wait_timeout: float = 5.0,
        split_reward: bool = False,
    ) -> list[Sample]:
        """Close a session; its samples, [] if it is finished already or nothing was asked in it.

        Each sample has the whole reward, or with `split_reward` its share; None leaves them to the reward stage.
        """
        await self.sessions.close(sid, wait_timeout)
        session = self.sessions.take(sid)
        if session is None:
            return []
        take_over(base_sample, session.trace)
        samples = await asyncio.to_thread(
            self.manager.get_trajectory,
            sid,
            base_sample=base_sample,
            reward=reward,
            extra_metadata=extra_metadata,
            max_sample_tokens=session.max_context_tokens,
            split=split_reward,
        )
        responses = await self.texts.decode([sample.tokens[sample.prompt_length :] for sample in samples])
        for sample, response in zip(samples, responses, strict=True):
            sample.response = response
        return samples

    async def shutdown_session(self, sid: str, *, wait_timeout: float = 5.0) -> None:
        """Close a session, which can still be finished."""
        await self.sessions.close(sid, wait_timeout)

    async def drop_session(self, sid: str, *, wait_timeout: float = 5.0) -> None:
        """Forget a session, whether it is finished or not; it stays closed."""
        await self.sessions.close(sid, wait_timeout)
        self.sessions.take(sid)
        self.manager.drop_session(sid)

    def _answering(self, endpoint: Endpoint[Any]) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.StreamResponse:
            raw = await read_object(request)
            task = asyncio.current_task()
            assert task is not None
            body = endpoint.body_type.model_validate(raw)
            session = self.sessions.enter(endpoint.session_id(request.headers, raw), task)
            try:
                return await self._turn(request, endpoint, body, session)
            finally:
                self.sessions.leave(session, task)

        return answer

    async def _turn(
        self, request: web.Request, endpoint: Endpoint[Any], body: Any, session: Session
    ) -> web.StreamResponse:
        """Ask, answer, and record what the client has received."""
        earlier = [*session.deliveries]
        is_streamed = endpoint.is_streamed(body) or EVENTS in request.headers.get("Accept", "")
        stream = EventStream(request, ping=endpoint.ping, ping_seconds=self.ping_seconds)
        try:
            async with stream.kept_alive() if is_streamed else nullcontext():
                question = endpoint.question(body, session)
                reply, record = await self._asked(question, session)
        except RequestError as error:
            return await stream.fail(error, self.error_body(error.status, error.message))
        async with session.delivery(earlier):
            endpoint.remember(body, session, question, reply)
            if is_streamed:
                response = await stream.deliver(endpoint.events(body, reply))
            else:
                response = await deliver_object(request, endpoint.answer(body, reply))
            self._debug(session.id, question, reply, record)
            self._record(session, question, reply, record)
        return response

    async def _asked(self, question: Question, session: Session) -> tuple[Reply, TurnRecord]:
        """What the model says. RequestError if it cannot be asked, or the engine has no answer."""
        assert self._engine is not None, "the adapter's app is not running"
        prompt_ids = await self.texts.render(question)
        constraint = await self.texts.constraint(question, prompt_ids)
        with trace_span(session.trace, "turn", attrs={"prompt_tokens": len(prompt_ids)}) as span:
            record = await self._engine.answer(prompt_ids, question, constraint, session)
            span.update({"completion_tokens": len(record.output_ids), "finish_reason": record.finish_reason})
        return await self.texts.read(record, question, self.call_prefix)

    def _record(self, session: Session, question: Question, reply: Reply, record: TurnRecord) -> None:
        history = [routed_by(message) for message in question.messages]
        with session.lock:
            if not session.is_sealed:
                self.manager.record_turn(session.id, record, history, routed_by(reply.message))

    def _debug(self, sid: str, question: Question, reply: Reply, record: TurnRecord) -> None:
        if self.debug_callback is None:
            return
        try:
            self.debug_callback(sid, question.messages, question.tools, reply.message, record)
        except Exception:  # it is for looking only
            logger.exception("the debug callback fails in session %s", sid)

    async def _with_engine(self, app: web.Application) -> AsyncIterator[None]:
        async with AdapterEngine(
            self.sglang_url,
            vocab_size=self.texts.vocab_size,
            timeout_seconds=self.timeout_seconds,
            asks_experts=self.manager.expert_shape is not None,
        ) as engine:
            self._engine = engine
            yield


async def _healthy(request: web.Request) -> web.Response:
    model = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "owned_by": "slime"}
    times = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
    return web.json_response({"ok": True, "object": "list", "data": [model | times], "has_more": False})

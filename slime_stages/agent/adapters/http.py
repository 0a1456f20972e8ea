"""HTTP around the adapters: bodies in, answers or streams of events out, errors in the protocol's form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from aiohttp import ClientPayloadError, web
from aiohttp.typedefs import Handler, Middleware
from pydantic import ValidationError

from slime_stages.agent.adapters.delivery import Delivery
from slime_stages.agent.adapters.endpoint import Event
from slime_stages.agent.adapters.errors import ClientGone, RequestError, first_problem, invalid

logger = logging.getLogger(__name__)
CLIENT_GONE = 499
JSON, EVENTS = "application/json", "text/event-stream"
ErrorBody = Callable[[int, str], dict[str, Any]]


def errors_as(error_body: ErrorBody) -> Middleware:
    """A middleware that answers whatever goes wrong with the protocol's own error object."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            return _error(error_body, error)
        except ValidationError as error:
            return _error(error_body, first_problem(error))
        except ClientGone:
            return web.Response(status=CLIENT_GONE)
        except web.HTTPException as error:
            return _error(error_body, RequestError(error.status, f"{request.method} {request.path}: {error.reason}"))
        except Exception as error:
            logger.exception("%s %s fails", request.method, request.path)
            return _error(error_body, RequestError(500, f"{type(error).__name__}: {error}"))

    return answer


async def read_object(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request. RequestError if it has none."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from error
    except ClientPayloadError as error:
        raise invalid(f"the body cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise invalid(f"the body is no JSON object but a {type(body).__name__}")
    return body


class EventStream:
    """An answer in events. It begins when it is there, or before that with a ping, so that no client gives up waiting.

    Once it has begun, what goes wrong is an event too.
    """

    def __init__(self, request: web.Request, *, ping: bytes, ping_seconds: float) -> None:
        self._request = request
        self._response = _new_response(EVENTS)
        self._ping = ping
        self._ping_seconds = ping_seconds

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """While the client waits for its answer."""
        pinging = asyncio.create_task(self._pinged())
        try:
            yield
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    async def deliver(self, events: Iterable[Event]) -> web.StreamResponse:
        return await _deliver(self._request, self._response, b"".join(map(_framed, events)))

    async def fail(self, error: RequestError, body: dict[str, Any]) -> web.StreamResponse:
        """Tell a client that was pinged of an error; it is raised if there is still a status to say it by."""
        if not self._response.prepared:
            raise error
        return await self.deliver([("error", body)])

    async def _pinged(self) -> None:
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(self._ping_seconds)
                if not self._response.prepared:
                    await self._response.prepare(self._request)
                await self._response.write(self._ping)


async def deliver_object(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    data = orjson.dumps(answer)
    response = _new_response(JSON)
    response.content_length = len(data)
    return await _deliver(request, response, data)


def _framed(event: Event) -> bytes:
    name, data = event
    line = data.encode() if isinstance(data, str) else orjson.dumps(data)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + line + b"\n\n"


def _new_response(content_type: str) -> web.StreamResponse:
    return web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})


async def _deliver(request: web.Request, response: web.StreamResponse, data: bytes) -> web.StreamResponse:
    """Send an answer; ClientGone unless the client has taken all of it.

    What marks the end of a stream is sent after that, as a client may leave once it has read the last event.
    """
    try:
        with Delivery(request.transport) as delivery:
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
            if not await delivery.arrived():
                raise ClientGone
    except ConnectionError as error:
        raise ClientGone from error
    with suppress(ConnectionError):
        await response.write_eof()
    return response


def _error(error_body: ErrorBody, error: RequestError) -> web.Response:
    headers = {"x-should-retry": "false"} if error.is_final else {}
    body = orjson.dumps(error_body(error.status, error.message))
    return web.Response(status=error.status, body=body, content_type=JSON, headers=headers)

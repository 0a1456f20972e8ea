"""Requests as plug-ins make them: `await post(url, payload)` to an engine, a router or a server of their own.

What passes by itself is asked again; a request that is refused is not. Answers of an engine come as they are.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from slime_stages.errors import RetryableError
from slime_stages.serving.client import BUSY, CONNECT_TIMEOUT_SECONDS, NO_ENGINE
from slime_stages.serving.in_flight import in_flight, next_try
from slime_stages.serving.per_loop import PerLoop

RETRY_SECONDS = 1.0
HOST_IP = "SLIME_HOST_IP"
PROBED_ADDRESS = ("192.0.2.1", 80)
"""Reserved for documentation: looking for the way there sends nothing."""


async def post(url: str, payload: Any, max_retries: int = 60, headers: Mapping[str, str] | None = None) -> Any:
    """The answer's JSON, or its text.

    aiohttp.ClientResponseError for a request that is refused, RetryableError after so many tries without an answer.
    One for tokens has an id of ours, so that it ends with the rollout, on engines that others use too.
    """
    if not (url.endswith("/generate") and _is_single(payload)):
        return await _asked("POST", url, max_retries, lambda: payload or {}, headers)
    rid = payload.get("rid") or uuid.uuid4().hex
    with in_flight(rid) as tries:
        return await _asked("POST", url, max_retries, lambda: {**payload, "rid": next_try(rid, tries)}, headers)


async def get(url: str, max_retries: int = 60, headers: Mapping[str, str] | None = None) -> Any:
    return await _asked("GET", url, max_retries, lambda: None, headers)


def init_http_client(args: Any) -> None:
    """Nothing: each event loop gets a client with its first request."""


async def close_http_client() -> None:
    """Close the client of this event loop; whoever ends the loop may leave it to that."""
    await _sessions.close()


def get_rollout_num_engines(args: Any) -> int:
    """Engines that a rollout has at a time."""
    if engines := getattr(args, "rollout_num_engines", None):
        return int(engines)
    return max(1, (getattr(args, "rollout_num_gpus", None) or 0) // (args.rollout_num_gpus_per_engine or 1))


def get_host_info() -> tuple[str, str]:
    """This machine's name, and the address at which others reach it."""
    name = socket.gethostname()
    if given := os.environ.get(HOST_IP):
        return name, given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(PROBED_ADDRESS)
            return name, str(probe.getsockname()[0])
        except OSError:
            return name, "127.0.0.1"


def get_current_node_ip() -> str:
    return get_host_info()[1]


def is_port_available(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except (OSError, OverflowError):
            return False
    return True


def find_available_port(base_port: int) -> int:
    """A port that is free, from a number on."""
    return next(port for port in range(base_port, 1 << 16) if is_port_available(port))


def get_free_port(start_port: int = 10000, consecutive: int = 1) -> int:
    """The first of so many ports in a row that are all free."""
    last = (1 << 16) - consecutive
    return next(
        port
        for port in range(start_port, last + 1)
        if all(is_port_available(port + number) for number in range(consecutive))
    )


def _is_single(payload: Any) -> bool:
    """Whether it asks an engine for one text, which has one id."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get("rid") or "", str):
        return False
    ids = payload.get("input_ids")
    return isinstance(payload.get("text"), str) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], int))


async def _asked(
    method: str, url: str, max_retries: int, body: Callable[[], Any], headers: Mapping[str, str] | None
) -> Any:
    session, last = await _sessions.get(), "no try was allowed"
    for attempt in range(max_retries):
        if attempt:
            await asyncio.sleep(RETRY_SECONDS)
        try:
            async with session.request(method, url, json=body(), headers=headers) as response:
                text = await response.text()
        except aiohttp.InvalidURL:
            raise
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            last = str(error) or type(error).__name__
            continue
        if response.status < 400:
            return _parsed(text)
        last = f"{response.status}: {text[:500]}"
        if response.status < 500 and response.status not in BUSY and NO_ENGINE not in text:
            raise aiohttp.ClientResponseError(
                response.request_info, response.history, status=response.status, message=text[:500]
            )
    raise RetryableError(f"{url} gave no answer in {max_retries} tries: {last}", hint="is the server that it asks up?")


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _new_session() -> aiohttp.ClientSession:
    """Its number of connections is the semaphore's business, not its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
        trust_env=False,
    )


_sessions = PerLoop(_new_session)

"""Reward type `remote_rm`: a server scores the sample. One pool of connections, and a deadline over all attempts.

The server gets `{"prompt", "response", "label"}` as JSON and answers with the reward as JSON. Tried again, with
growing pauses, is what may be over soon: an answer of 500 and above, a connection that is refused or lost. Any other
answer is final.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from slime_stages.errors import DataError, UsageError
from slime_stages.rewards.tasks import RewardStatus, RewardTimeout, answer_of, check_reward
from slime_stages.serving.per_loop import PerLoop

REMOTE = "remote_rm"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0
_MOST_BYTES = 64 << 20
_IN_FLIGHT_OF_A_WORKER = 64


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """Samples that one server scores, each on its own."""

    url: str
    questions: list[dict[str, Any]]
    """What is sent for each sample."""

    def packed(self) -> bytes:
        return pickle.dumps(self)

    @classmethod
    def unpacked(cls, body: bytes) -> Self:
        task: Self = pickle.loads(body)
        return task


def question(prompt: Any, response: str, label: Any) -> dict[str, Any]:
    """What the server is sent for one sample."""
    return {"prompt": prompt, "response": response, "label": label}


class RewardServer:
    """A client of reward servers, for one event loop; close it."""

    def __init__(self, in_flight: int) -> None:
        """At most `in_flight` samples are asked for at a time. Others wait, and their clocks do not run yet."""
        self._in_flight = in_flight
        self._gate = asyncio.Semaphore(in_flight)
        self._session: Any = None

    async def ask(self, url: str, asked: Mapping[str, Any], seconds: float) -> Any:
        """The answer, as JSON has it. RewardTimeout after so many seconds, DataError for an answer that is final."""
        attempt, failure = 0, "no answer"
        try:
            async with self._gate, asyncio.timeout(seconds):
                while True:
                    attempt += 1
                    answer, failure = await self._attempt(url, asked)
                    if answer is not None:
                        return _parsed(url, answer)
                    pause = min(_FIRST_PAUSE * 2 ** min(attempt - 1, 10), _LONGEST_PAUSE)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        except TimeoutError:
            message = f"{url} gave no reward within {seconds:g} s, asked {attempt} times; the last time: {failure}"
            raise RewardTimeout(message) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _attempt(self, url: str, asked: Mapping[str, Any]) -> tuple[bytes | None, str]:
        """The body of a good answer, or None and what went wrong if it may go better next time."""
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._in_flight)
            no_limit = aiohttp.ClientTimeout(total=None)  # the deadline is over all attempts
            self._session = aiohttp.ClientSession(connector=connector, timeout=no_limit)
        try:
            async with self._session.post(url, json=asked) as response:
                body = await response.content.read(_MOST_BYTES) if response.status >= 400 else await _whole(response)
                if response.status >= 500:
                    return None, f"{response.status} {response.reason}: {_shown(body)}"
                if response.status >= 400:
                    raise DataError(f"{url} refused the sample: {response.status} {response.reason}: {_shown(body)}")
                return body, ""
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
            return None, f"{type(error).__name__}: {error}"
        except aiohttp.ClientError as error:  # a redirect without end, a URL that is none, an answer that is not HTTP
            raise DataError(f"{url} gave no answer that can be read: {type(error).__name__}: {error}") from error


class RemoteScorer:
    """Answers tasks for reward servers in the supervisor, many at a time; runs no user code."""

    def __init__(self, in_flight: int, seconds: float) -> None:
        self._server = RewardServer(in_flight)
        self._seconds = seconds

    async def answer(self, body: bytes) -> dict[str, Any]:
        """The outcome of one task, as a worker would send it."""
        task, started = RemoteTask.unpacked(body), time.monotonic()
        try:
            asked = (self._server.ask(task.url, each, self._seconds) for each in task.questions)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            rewards = [check_reward(_raised(answer)) for answer in answers]
        except RewardTimeout as error:
            return _no_answer(RewardStatus.TIMEOUT, error, started)
        except (DataError, ValueError, TypeError) as error:
            return _no_answer(RewardStatus.ERROR, error, started)
        return answer_of(RewardStatus.SCORED, rewards, None, time.monotonic() - started, is_spent=False)

    async def close(self) -> None:
        await self._server.close()


_servers = PerLoop(lambda: RewardServer(_IN_FLIGHT_OF_A_WORKER))


async def ask_server(args: Any, asked: Mapping[str, Any]) -> Any:
    """`remote_rm` within a worker: for lists that mix types, and for custom functions that call the hub."""
    server = await _servers.get()
    # A little before the worker would be killed, so that the message tells what the server said.
    return await server.ask(server_url(args), asked, 0.95 * float(getattr(args, "reward_timeout", 60.0)))


def server_url(args: Any) -> str:
    """The run's reward server; UsageError without one."""
    url = getattr(args, "rm_url", None)
    if not url:
        raise UsageError(f"reward type `{REMOTE}` needs the address of a server", hint="--rm-url URL")
    return str(url)


def _no_answer(status: RewardStatus, error: Exception, started: float) -> dict[str, Any]:
    return answer_of(status, None, str(error), time.monotonic() - started, is_spent=False)


def _raised(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def _whole(response: Any) -> bytes:
    body = bytearray()
    async for part in response.content.iter_chunked(1 << 16):
        body += part
        if len(body) > _MOST_BYTES:
            raise DataError(f"{response.url} answers with more than {_MOST_BYTES >> 20} MiB")
    return bytes(body)


def _parsed(url: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{url} answered with what is no JSON: {_shown(body)}") from error


def _shown(body: bytes) -> str:
    text = " ".join(body[:400].decode(errors="replace").split())
    return (text[:200] + "…" if len(text) > 200 else text) or "(empty)"

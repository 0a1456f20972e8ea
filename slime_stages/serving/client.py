"""The async client of an engine or router: token ids in, token ids with log-probs out, or an error that says why."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from slime_stages.errors import DataError, InternalError, RetryableError
from slime_stages.serving.in_flight import in_flight, next_try, tries_of

CONNECT_TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 10.0
BUSY = (408, 425, 429)
"""Client errors that pass by themselves."""
NO_ENGINE = "model_not_found"
"""In the words of a router that knows no engine, as while it or all of them are started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOutput:
    """One answer, checked. Shapes: R response tokens."""

    text: str
    """For people; training uses `output_ids`."""

    output_ids: list[int]
    """[R]"""

    output_log_probs: list[float]
    """[R] natural log of each token's probability after temperature, before top-p and top-k."""

    finish_reason: str
    """`stop`, `length` or `abort`."""

    weight_version: str
    """Of the weights that wrote the last token."""

    meta_info: dict[str, Any]
    """As answered, with all else the engine says."""


class EngineClient:
    """At most `concurrency` requests at a time to `url`; use it in `async with`.

    With `weight_version`, an answer of other weights is a RetryableError: engines that several jobs share may be given
    other ones.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        concurrency: int = 512,
        timeout_seconds: float = 3600.0,
        weight_version: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.vocab_size = vocab_size
        self.weight_version = weight_version
        self.concurrency = concurrency
        self.timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> EngineClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.concurrency),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        *,
        rid: str,
        routing_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        media: Mapping[str, Any] | None = None,
    ) -> GenerateOutput:
        """Continue `input_ids`; of a prompt with images, the `text` and `image_data` of `media`, which make those ids.

        DataError at once if the engine refuses; RetryableError once `timeout_seconds` have passed without an answer.
        """
        self._check_input(input_ids, rid)
        body = {
            **(media or {"input_ids": list(input_ids)}),
            "sampling_params": dict(sampling_params),
            "return_logprob": True,
            **(extra or {}),
        }
        headers = {"X-SMG-Routing-Key": routing_key} if routing_key else {}
        with in_flight(rid) as tries:
            output = read_answer(await self._post_until_answered("/generate", body, headers, rid, tries), rid)
        if media and (seen := output.meta_info.get("prompt_tokens")) != len(input_ids):
            raise DataError(
                f"request {rid}: the engine made {seen} tokens of text and images, the prompt table {len(input_ids)}",
                hint="the model's folder needs the processor that the engine uses: compare it with `hf-checkpoint`",
            )
        if self.weight_version not in (None, output.weight_version):
            raise RetryableError(
                f"{self.url} was given weights {output.weight_version} while it worked for {self.weight_version}",
                hint="the same command asks again for what is missing; see --service-wait-seconds",
            )
        return output

    async def prefill(self, input_ids: Sequence[int], *, rid: str, routing_key: str | None = None) -> None:
        """Compute a prompt once, so that the samples of its group find it in the prefix cache."""
        params = {"max_new_tokens": 0, "temperature": 1.0}
        await self.generate(input_ids, params, rid=rid, routing_key=routing_key, extra={"return_logprob": False})

    async def abort(self, rid: str) -> None:
        """End a request that this process has sent, by whichever client; it is answered with what it has.

        An engine that does not know the request does nothing.
        """
        await asyncio.gather(*(self._post("/abort_request", {"rid": each}, {}) for each in tries_of(rid)))

    async def abort_all(self) -> None:
        """End every request of the engine, whoever sent it."""
        await self._post("/abort_request", {"abort_all": True}, {})

    def _check_input(self, input_ids: Sequence[int], rid: str) -> None:
        """An id outside the vocabulary ends a server on a CPU, with every request in it."""
        if not input_ids:
            raise DataError(f"request {rid} has no input tokens", hint="look at the prompt and the chat template")
        if min(input_ids) >= 0 and max(input_ids) < self.vocab_size:
            return
        for position, token in enumerate(input_ids):
            if not 0 <= token < self.vocab_size:
                raise DataError(
                    f"request {rid} has token {token} at position {position}; the vocabulary has {self.vocab_size}",
                    hint="the tokenizer is not the model's: compare tokenizer and model in `hf-checkpoint`",
                )

    async def _post_until_answered(
        self, path: str, body: dict[str, Any], headers: dict[str, str], rid: str, tries: list[str]
    ) -> dict[str, Any]:
        pause, last = FIRST_PAUSE_SECONDS, "no answer"
        try:
            async with asyncio.timeout(self.timeout_seconds):
                while True:
                    body["rid"] = next_try(rid, tries)
                    try:
                        return await self._post(path, body, headers)
                    except RetryableError as error:
                        last = error.message
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except TimeoutError as error:
            raise RetryableError(
                f"request {rid} is unanswered after {self.timeout_seconds:g} s and {len(tries)} tries: {last}",
                hint="look at the engine's log, or raise --request-timeout-seconds",
            ) from error

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        assert self._session is not None, "use the client in `async with`"
        try:
            data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
            headers = {"Content-Type": "application/json", **headers}
            async with self._session.post(self.url + path, data=data, headers=headers) as response:
                if response.status == 200:
                    return _parsed(await response.read())
                words = (await response.text())[:500]
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            raise RetryableError(f"{self.url}{path} does not answer: {error or type(error).__name__}") from error
        if response.status >= 500 or response.status in BUSY or NO_ENGINE in words:
            raise RetryableError(f"{self.url}{path} answers {response.status}: {words}")
        raise DataError(f"{self.url}{path} refuses ({response.status}): {words}")


def _parsed(body: bytes) -> dict[str, Any]:
    """Nothing at all is an empty table. ValueError for what is no JSON."""
    try:
        return dict(orjson.loads(body or b"{}") or {})
    except orjson.JSONDecodeError:
        return dict(json.loads(body))  # it takes NaN, which the reader of the answer tells of


def read_answer(answer: Mapping[str, Any], rid: str) -> GenerateOutput:
    """The tokens of an answer of `/generate`; InternalError if ids and log-probs do not fit together."""
    try:
        meta_info = answer["meta_info"]
        pairs = meta_info.get("output_token_logprobs") or []
        log_probs, ids = [pair[0] for pair in pairs], [int(pair[1]) for pair in pairs]
        finish_reason = meta_info["finish_reason"]["type"]
    except (KeyError, TypeError, IndexError) as error:
        raise InternalError(f"the answer to {rid} lacks {error}: {str(answer)[:300]}") from error
    output_ids = answer.get("output_ids")
    if pairs and output_ids is not None and list(output_ids) != ids:
        raise InternalError(f"the answer to {rid} has {len(output_ids)} tokens, but log-probs of {len(ids)} others")
    for position, value in enumerate(log_probs):
        if not isinstance(value, float | int) or not math.isfinite(value):
            raise InternalError(
                f"the answer to {rid} has log-prob {value} at token {position}",
                hint="the weights hold values that are not finite, or overflow in the engine's dtype",
            )
    return GenerateOutput(
        text=answer.get("text") or "",
        output_ids=ids,
        output_log_probs=[float(value) for value in log_probs],
        finish_reason=finish_reason,
        weight_version=str(meta_info.get("weight_version", "")),
        meta_info=dict(meta_info),
    )

"""Ask E2B's service, again where that may help, and tell of its errors as of ours."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from slime_stages.errors import (
    DataError,
    InternalError,
    MissingInputError,
    RetryableError,
    SlimeStagesError,
    UsageError,
)

Result = TypeVar("Result")

RETRIES = "SLIME_AGENT_SANDBOX_RPC_RETRIES"
_DEFAULT_RETRIES = 6
_LONGEST_PAUSE = 32.0
_LATER = (408, 409, 425, 429)
"""Statuses of a refusal that is not for ever."""
_GONE = ("does not exist", "STOPPED state", "was not found")
"""In the words of servers that speak E2B's protocol, and have no status for it."""


class Service:
    """Calls of one sandbox."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Of the sandbox, in messages."""
        self.sdk = _load_sdk()
        self._retries = int(os.environ.get(RETRIES, _DEFAULT_RETRIES))

    async def call(self, attempt: Callable[[], Awaitable[Result]], *, is_idempotent: bool = True) -> Result:
        """What `attempt` gives, at last; what may have been carried out is only asked again if it `is_idempotent`."""
        for number in range(self._retries + 1):
            try:
                return await attempt()
            except Exception as error:
                if not self._is_service_error(error):
                    raise
                if (final := self._final(error)) is not None:
                    raise final from error
                if number == self._retries or not (is_idempotent or self.was_refused(error)):
                    raise RetryableError(
                        f"E2B, sandbox {self.name}: {type(error).__name__}: {error}",
                        hint=f"is the service up? {RETRIES}={2 * self._retries + 1} asks for longer",
                    ) from error
            await asyncio.sleep(random.uniform(0, min(_LONGEST_PAUSE, 2.0**number)))
        raise AssertionError("unreachable")

    def was_refused(self, error: Exception) -> bool:
        """Whether nothing was carried out, for sure."""
        return isinstance(error, (self.sdk.RateLimitException, self.sdk.ServiceBusyException))

    def _is_service_error(self, error: Exception) -> bool:
        """The SDK lets errors of its libraries through, and raises a bare `Exception` where a stream just ends."""
        from connectrpc.errors import ConnectError
        from httpx import HTTPError

        kinds = (self.sdk.SandboxException, self.sdk.ServiceBusyException, self.sdk.AuthenticationException)
        return isinstance(error, (*kinds, ConnectError, HTTPError, OSError)) or type(error) is Exception

    def _final(self, error: Exception) -> SlimeStagesError | None:
        """What is raised at once: another attempt would end in the same way."""
        sdk, text = self.sdk, f"{type(error).__name__}: {error}"
        gone = RetryableError(
            f"the sandbox {self.name} is gone: {text}", hint="more `lifetime_seconds`, if its time was up"
        )
        if isinstance(error, (sdk.SandboxNotRunningException, sdk.SandboxNotFoundException)):
            return gone
        if isinstance(error, sdk.AuthenticationException):
            return UsageError(
                f"E2B does not let sandbox {self.name} do that: {text}",
                hint="export E2B_API_KEY=…, and run commands as a user that the template has",
            )
        if isinstance(error, sdk.CommandExitException):
            return InternalError(
                f"a command of ours in {self.name} ended with {error.exit_code}: {error.stderr.strip()}",
                hint="has the template what it takes: bash, env, grep, mkdir, rm, tar, tr, wc?",
            )
        if isinstance(error, sdk.NotEnoughSpaceException):
            return DataError(f"the disk of {self.name} is full: {text}", hint="a template with a larger one")
        status = getattr(error, "status_code", None) or 0
        if isinstance(error, (sdk.InvalidArgumentException, sdk.NotFoundException, sdk.TemplateException)) or (
            400 <= status < 500 and status not in _LATER
        ):
            return UsageError(f"E2B refuses what {self.name} asks: {text}", hint="correct the image, or what it names")
        return gone if any(words in str(error) for words in _GONE) else None


def _load_sdk() -> Any:
    try:
        import e2b
    except ImportError as error:
        raise MissingInputError("a sandbox at E2B needs its SDK", hint="pip install e2b") from error
    return e2b

"""Running an adapter's app in a thread of its own, beside a loop that is busy with other things."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from slime_stages.errors import InternalError, UsageError

START_SECONDS = 15.0
STOP_SECONDS = 15.0
SLOW_SECONDS = 120.0
DEFAULTS: Mapping[str, Any] = {
    "handler_cancellation": True,  # or a handler is not told that its client has gone
    "shutdown_timeout": 5.0,
}


class FilteredAccessLogger(AbstractAccessLogger):
    """Tells of requests that failed or took long."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        if request.method != "HEAD" and (response.status != 200 or time > SLOW_SECONDS):
            self.logger.info("%s %s: %d after %.1f s", request.method, request.path, response.status, time)


class AppThread:
    """An app being served; `stop` it, or use it in `with`."""

    def __init__(self, app: web.Application, host: str, port: int, name: str, runner_kwargs: Mapping[str, Any]) -> None:
        self.host, self.port = host, port
        self._app = app
        self._runner_kwargs = {**DEFAULTS, "access_log_class": FilteredAccessLogger, **runner_kwargs}
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._stopping = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    def start(self) -> AppThread:
        """UsageError if the address cannot be had."""
        self._thread.start()
        if not self._is_up.wait(START_SECONDS):
            raise InternalError(f"the adapter is not up after {START_SECONDS:g} s at {self.host}:{self.port}")
        if isinstance(self._error, OSError):
            raise UsageError(
                f"the adapter cannot listen at {self.host}:{self.port}: {self._error}", hint="port 0 takes a free one"
            ) from self._error
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_SECONDS)

    def __enter__(self) -> AppThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._is_up.set()
            self._loop.close()

    async def _serve(self) -> None:
        runner = web.AppRunner(self._app, **self._runner_kwargs)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
            self.port = runner.addresses[0][1]
            self._is_up.set()
            await self._stopping.wait()
        finally:
            await runner.cleanup()


def run_app_in_thread(
    app: web.Application,
    host: str = "127.0.0.1",
    port: int = 0,
    thread_name: str = "adapter",
    runner_kwargs: Mapping[str, Any] | None = None,
) -> AppThread:
    """Serve an app; port 0 takes a free one, which the result tells."""
    return AppThread(app, host, port, thread_name, runner_kwargs or {}).start()

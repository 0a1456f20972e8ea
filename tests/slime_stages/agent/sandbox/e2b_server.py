"""E2B's service on this machine, for its real SDK: the REST interface, and that of `envd`, which runs commands.

A sandbox is a name, and its commands are processes of this machine. What they do is what `envd` has them do: a login
shell; a working folder that must be there; users that must be known; processes that no lost connection ends; a stream
that is open while anybody holds the command's output; and -1 for whoever was killed.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb
from e2b.envd.process.process_connect import Process, ProcessASGIApplication
from protobuf import Oneof
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

API_KEY = "e2b_0123456789abcdef"
TEMPLATES = ("base", "swe")
USERS = ("root", "user", "agent")
_START = process_pb.ProcessEvent.StartEvent
_DATA = process_pb.ProcessEvent.DataEvent
_END = process_pb.ProcessEvent.EndEvent
_reading: set[asyncio.Future[None]] = set()
"""What commands write, whether or not anybody still listens."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the next request of a path."""

    path: str
    status: int
    """Of the answer, in place of the right one; 0: the connection is cut instead."""
    message: str = ""
    after: int = 1
    """So many messages of the right answer go out before the cut."""
    retry_after: int | None = None


@dataclass(slots=True)
class E2BServer:
    """All that was asked of it, and what it is to do wrong."""

    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    """Idempotency keys, of each request to create."""
    running: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    """Of each command."""

    def fault_for(self, path: str) -> Fault | None:
        found = next((fault for fault in self.faults if fault.path == path), None)
        if found is not None:
            self.faults.remove(found)
        return found


@contextmanager
def e2b_server() -> Iterator[E2BServer]:
    """The service, in a thread of its own."""
    state = E2BServer()
    server = uvicorn.Server(uvicorn.Config(_app(state), port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        state.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield state
    finally:
        server.should_exit = True
        thread.join()


def _app(state: E2BServer) -> Any:
    rest = _Rest(state)
    routes = [
        Route("/v2/sandboxes", rest.create, methods=["POST"]),
        Route("/sandboxes/{name}", rest.kill, methods=["DELETE"]),
        Route("/health", rest.health),
        Route("/files", rest.read, methods=["GET"]),
        Route("/files", rest.write, methods=["POST"]),
        Mount("/", _only_with_sandbox(ProcessASGIApplication(_Envd(state)), state)),
    ]
    return _with_faults(Starlette(routes=routes), state)


class _Rest:
    def __init__(self, state: E2BServer) -> None:
        self._state = state

    async def create(self, request: Request) -> Response:
        if request.headers.get("x-api-key") != API_KEY:
            return JSONResponse({"code": 401, "message": "Invalid API key"}, 401)
        body = await request.json()
        self._state.keys.append(request.headers.get("idempotency-key"))
        if body["templateID"] not in TEMPLATES:
            return JSONResponse({"code": 404, "message": f"template '{body['templateID']}' not found"}, 404)
        self._state.created.append(body)
        name = f"box{len(self._state.created)}"
        self._state.running.append(name)
        answer = {"templateID": body["templateID"], "sandboxID": name, "clientID": "c", "envdVersion": "0.6.7"}
        return JSONResponse({**answer, "envdAccessToken": "token"}, 201)

    async def kill(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._state.running:
            return JSONResponse({"code": 404, "message": f"sandbox {name} not found"}, 404)
        self._state.running.remove(name)
        self._state.killed.append(name)
        return Response(status_code=204)

    async def health(self, request: Request) -> Response:
        return Response(status_code=204) if _is_running(request.headers, self._state) else _not_found()

    async def read(self, request: Request) -> Response:
        path = Path(request.query_params["path"])
        if not path.is_file():
            return JSONResponse({"code": 404, "message": f"path '{path}' does not exist"}, 404)
        return Response(path.read_bytes(), media_type="application/octet-stream")

    async def write(self, request: Request) -> Response:
        async with request.form(max_part_size=1 << 30) as form:
            content = await form["file"].read()  # type: ignore[union-attr]
        path = Path(request.query_params["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return JSONResponse([{"name": path.name, "type": "file", "path": str(path)}])


class _Envd(Process):
    def __init__(self, state: E2BServer) -> None:
        self._state = state

    async def start(self, request: Any, ctx: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        config = request.process
        user = base64.b64decode(ctx.request_headers["authorization"].removeprefix("Basic ")).decode().rstrip(":")
        self._state.users.append(user)
        if user not in USERS:
            raise ConnectError(Code.UNAUTHENTICATED, f"invalid username: '{user}'")
        if not os.path.isdir(config.cwd):
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd '{config.cwd}' does not exist")
        process = await asyncio.create_subprocess_exec(
            config.cmd,
            *config.args,
            env={"PATH": os.environ["PATH"], "HOME": "/", "USER": user, **dict(config.envs)},
            cwd=config.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        events: asyncio.Queue[Any] = asyncio.Queue()
        _reading.add(reading := asyncio.ensure_future(_read(process, events)))
        reading.add_done_callback(_reading.discard)
        if (left := ctx.timeout_ms) is not None:
            asyncio.get_running_loop().call_later(left / 1000, _kill, process)
        yield _event("start", _START(pid=process.pid))
        while (event := await events.get()) is not None:
            yield event


async def _read(process: asyncio.subprocess.Process, events: asyncio.Queue[Any]) -> None:
    async def copy(stream: asyncio.StreamReader, name: str) -> None:
        while part := await stream.read(1 << 15):
            events.put_nowait(_event("data", _DATA(output=Oneof(name, part))))

    assert process.stdout is not None
    assert process.stderr is not None
    await asyncio.gather(copy(process.stdout, "stdout"), copy(process.stderr, "stderr"))
    code = await process.wait()
    error = f"signal: {signal.strsignal(-code)}".lower() if code < 0 else f"exit status {code}" if code else None
    status = error or "exit status 0"
    given = {"error": error} if error else {}
    events.put_nowait(_event("end", _END(exit_code=max(code, -1), exited=code >= 0, status=status, **given)))
    events.put_nowait(None)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


def _event(name: str, value: Any) -> Any:
    return process_pb.StartResponse(event=process_pb.ProcessEvent(event=Oneof(name, value)))


def _is_running(headers: Any, state: E2BServer) -> bool:
    return headers.get("e2b-sandbox-id") in state.running and headers.get("x-access-token") == "token"


def _not_found() -> Response:
    """As the proxy in front of sandboxes says it."""
    return JSONResponse({"sandboxId": "", "message": "The sandbox was not found", "code": 502}, 502)


def _only_with_sandbox(app: Any, state: E2BServer) -> Any:
    async def asked(scope: Any, receive: Any, send: Any) -> None:
        inner = app if _is_running(Request(scope).headers, state) else _not_found()
        await inner(scope, receive, send)

    return asked


def _with_faults(app: Any, state: E2BServer) -> Any:
    async def asked(scope: Any, receive: Any, send: Any) -> None:
        fault = state.fault_for(scope["path"]) if scope["type"] == "http" else None
        if fault is None:
            await app(scope, receive, send)
        elif fault.status:
            headers = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
            answer = JSONResponse({"code": fault.status, "message": fault.message}, fault.status, headers)
            await answer(scope, receive, send)
        else:
            await app(scope, receive, _cut_after(fault.after, send))

    return asked


def _cut_after(count: int, send: Any) -> Any:
    """The server closes the connection of an application that fails in the middle of its answer."""
    sent = 0

    async def cut(message: Any) -> None:
        nonlocal sent
        if message["type"] == "http.response.body":
            if sent == count:
                raise ConnectionAbortedError("cut")
            sent += 1
        await send(message)

    return cut

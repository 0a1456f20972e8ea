"""An engine that says what a test has written down, by the tiny tokenizer's ids, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from slime_stages.agent.adapters import run_app_in_thread

Script = Callable[[dict[str, Any]], str]


@dataclass
class ScriptedEngine:
    """Says the `script`'s texts one after the other, or what a function makes of a request.

    The n-th token of an answer has log-prob -n/100.
    """

    tokenizer: Any
    script: list[str] | Script = field(default_factory=list)
    finish: str = "stop"
    """`stop` adds the token that ends a turn."""
    status: int = 200
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of /generate, with the routing key."""
    aborted: list[str] = field(default_factory=list)
    """Ids of requests."""
    left: list[str] = field(default_factory=list)
    """Ids of requests that nobody waited for."""
    may_answer: threading.Event = field(default_factory=threading.Event)
    workers: list[str] = field(default_factory=list)
    """Engines behind it, of which it passes no abort on: then it is a router."""
    url: str = ""
    log_probs: list[float] = field(default_factory=list)
    """Of the next answers' first tokens, where they are other ones."""

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body | {"routing_key": request.headers.get("X-SMG-Routing-Key")})
        if self.status != 200:
            return web.Response(status=self.status, text="refused")
        text = self.script.pop(0) if isinstance(self.script, list) else self.script(self.requests[-1])
        try:
            while not self.may_answer.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.left.append(body["rid"])
            raise
        return web.json_response(self.answer(body, self.ids(text)))

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, self.tokenizer.eos_token_id] if self.finish == "stop" else ids

    def answer(self, body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": self.finish}
        log_probs = [*self.log_probs, *(-(number + 1) / 100 for number in range(len(self.log_probs), len(ids)))]
        if self.finish == "stop":
            finish["matched"] = self.tokenizer.eos_token_id
        meta = {
            "output_token_logprobs": [[log_prob, token, None] for log_prob, token in zip(log_probs, ids, strict=True)],
            "finish_reason": finish,
            "weight_version": "3",
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
        }
        return {"text": "", "output_ids": ids, "meta_info": meta}

    async def abort(self, request: web.Request) -> web.Response:
        if self.workers:
            return web.Response(status=404)
        self.aborted.append((await request.json())["rid"])
        return web.json_response({})

    async def list_workers(self, request: web.Request) -> web.Response:
        if not self.workers:
            return web.Response(status=404)
        return web.json_response({"workers": [{"id": "w", "url": url} for url in self.workers]})


@contextmanager
def serving(engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/generate", engine.generate)
    app.router.add_post("/abort_request", engine.abort)
    app.router.add_get("/workers", engine.list_workers)
    with run_app_in_thread(app, thread_name="scripted-engine") as running:
        engine.url = running.url
        yield engine

"""A server that answers as an engine does, at once, and remembers who asked: what a router does with it can be seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeEngine:
    """One engine; `info` is what it says of itself."""

    def __init__(self, **info: Any) -> None:
        self.info = {"model_path": "/model", "served_model_name": "actor", "is_generation": True, **info}
        self.weight_version = str(info.get("weight_version", "0"))
        self.generated: list[dict[str, Any]] = []
        """Bodies of /generate, with the routing key."""
        self.loaded: list[str] = []
        """Paths of weights."""
        self.controlled: list[str] = []
        """pause, load, continue."""
        self.request_count = 0
        self.url = ""

    def answer(self, path: str, body: dict[str, Any], routing_key: str | None) -> Any:
        if path == "/generate":
            self.generated.append(body | {"routing_key": routing_key})
            finish = {"type": "stop"}
            meta = {"output_token_logprobs": [[-1.0, 5, None]], "finish_reason": finish, "weight_version": "0"}
            return {"text": "", "output_ids": [5], "meta_info": meta | {"weight_version": self.weight_version}}
        if path == "/update_weights_from_disk":
            self.loaded.append(body["model_path"])
            self.controlled.append("load")
            self.weight_version = body["weight_version"]
            return {"success": True}
        if path in ("/pause_generation", "/continue_generation"):
            self.controlled.append(path.removeprefix("/").partition("_")[0])
            return {}
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "actor", "object": "model"}]}
        if path.startswith("/v1/loads"):
            return {"loads": [{"num_running_reqs": self.request_count, "num_waiting_reqs": 0}]}
        if path in ("/model_info", "/server_info"):
            return self.info | {"weight_version": self.weight_version}
        return {} if path == "/health" else None


@contextmanager
def serving(engine: FakeEngine) -> Iterator[FakeEngine]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self._respond(json.loads(self.rfile.read(length) or b"{}"))

        def _respond(self, body: dict[str, Any]) -> None:
            answer = engine.answer(self.path, body, self.headers.get("X-SMG-Routing-Key"))
            data = json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()

"""A real HTTP server that rewards samples, or does what servers do at their worst; the sample's label says what."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RewardServer(ThreadingHTTPServer):
    """Counts what it was asked."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        self.at_once = 0
        self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: RewardServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = str(body["label"])
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.asked[name] += 1
            count = self.server.asked[name]
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        try:
            getattr(self, name.partition(" ")[0])(body, count)
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    def length(self, body: dict[str, Any], count: int) -> None:
        self.reply(200, json.dumps(float(len(body["response"]))))

    def parts(self, body: dict[str, Any], count: int) -> None:
        self.reply(200, '{"score": 0.5, "why": "half"}')

    def slow(self, body: dict[str, Any], count: int) -> None:
        time.sleep(0.2)
        self.length(body, count)

    def hang(self, body: dict[str, Any], count: int) -> None:
        time.sleep(60)

    def recovers(self, body: dict[str, Any], count: int) -> None:
        self.reply(503, "warming up") if count < 3 else self.length(body, count)

    def breaks_off(self, body: dict[str, Any], count: int) -> None:
        """Half an answer the first time, none the second."""
        if count == 1:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"1.")
        if count < 3:
            self.close_connection = True
            return
        self.length(body, count)

    def down(self, body: dict[str, Any], count: int) -> None:
        self.reply(500, "no GPU left")

    def bad_request(self, body: dict[str, Any], count: int) -> None:
        self.reply(400, "the response is too long")

    def too_many(self, body: dict[str, Any], count: int) -> None:
        self.reply(429, "come back later")

    def garbage(self, body: dict[str, Any], count: int) -> None:
        self.reply(200, "<html>it works</html>")

    def no_number(self, body: dict[str, Any], count: int) -> None:
        self.reply(200, '"1.0"')

    def not_finite(self, body: dict[str, Any], count: int) -> None:
        self.reply(200, "NaN")

    def reply(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def reward_server() -> Iterator[RewardServer]:
    server = RewardServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

"""Control calls to a running engine, whoever started it. Blocking, with a deadline each, past any proxy."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError, InternalError, RetryableError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpHandle:
    """A server by its address."""

    def __init__(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds

    def call(
        self, method: str, path: str, body: dict[str, object] | None = None, *, timeout_seconds: float | None = None
    ) -> Any:
        """The answer, from JSON where it is some. DataError if refused, RetryableError on a failure of the server."""
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with _OPENER.open(request, timeout=timeout_seconds or self.timeout_seconds) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace")[:500]
            if error.code >= 500:
                raise RetryableError(f"{self.url}{path} answers {error.code}: {words}") from error
            raise DataError(f"{self.url}{path} refuses ({error.code}): {words}") from error
        except (OSError, http.client.HTTPException) as error:
            raise RetryableError(f"{self.url}{path} does not answer: {error}") from error
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text


class EngineHandle(HttpHandle):
    """An engine by its address."""

    def is_healthy(self) -> bool:
        """True if the engine generates: `/health` makes it answer one token when it is idle."""
        try:
            self.call("GET", "/health")
        except (RetryableError, DataError):
            return False
        return True

    def version(self) -> str:
        """The weight version that the engine would put on a sample now."""
        return str(self.model_info()["weight_version"])

    def model_info(self, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """What is served: `model_path`, `weight_version` and more."""
        return dict(self.call("GET", "/model_info", timeout_seconds=timeout_seconds))

    def server_info(self) -> dict[str, Any]:
        """The engine's resolved arguments and its state."""
        try:
            return dict(self.call("GET", "/server_info"))
        except DataError:  # an older SGLang
            return dict(self.call("GET", "/get_server_info"))

    def update_weights(self, path: Path, version: str, *, timeout_seconds: float = 1800.0) -> None:
        """Load the Hugging Face folder `path` as `version` and verify it; on refusal the old weights stay in place.

        Every prefix that was computed with the old ones is forgotten. Requests that run are waited for.
        """
        body = {"model_path": str(path), "weight_version": version, "flush_cache": True}
        self.call("POST", "/update_weights_from_disk", body, timeout_seconds=timeout_seconds)
        if (found := self.version()) != version:
            raise InternalError(
                f"{self.url} answers weight version {found} after loading {version} from {path}",
                hint="restart the engine: its weights are of unknown version",
            )

    def update_running(self, path: Path, version: str, *, timeout_seconds: float = 1800.0) -> None:
        """The same without waiting: what runs is computed again under the new weights, and goes on from the tokens that
        it has. Its answer says which version wrote which of them."""
        self.call("POST", "/pause_generation", {"mode": "retract"})
        try:
            self.update_weights(path, version, timeout_seconds=timeout_seconds)
        finally:
            self.call("POST", "/continue_generation")

    def request_count(self) -> int:
        """Requests that the engine works on or has waiting."""
        loads = self.call("GET", "/v1/loads?include=core")
        entries = loads.get("loads", [loads]) if isinstance(loads, dict) else loads
        return sum(_count_of(entry) for entry in entries)

    def flush_cache(self) -> None:
        """Forget every prefix: none of them was computed with the weights of now."""
        self.call("POST", "/flush_cache")

    def abort_all(self) -> None:
        """End every request; each is answered with what it has and finish reason `abort`."""
        self.call("POST", "/abort_request", {"abort_all": True})


def _count_of(load: dict[str, Any]) -> int:
    if "num_total_reqs" in load:
        return int(load["num_total_reqs"])
    return sum(int(load.get(name, 0)) for name in ("num_running_reqs", "num_waiting_reqs"))

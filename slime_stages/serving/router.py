"""The router before several engines, smg: as a child, and by its address.

with Router(RouterOptions(), log=Path("router.log")) as router:
    router.add("http://127.0.0.1:30001")
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError, RetryableError, SlimeStagesError
from slime_stages.serving.failure import explain_failure, read_log
from slime_stages.serving.flags import check_router_flags, to_words
from slime_stages.serving.handle import HttpHandle
from slime_stages.serving.installation import OWN_PYTHON, inspect_installation
from slime_stages.serving.process import OwnedServer, free_port

POLL_SECONDS = 0.1
WORKER_READY_SECONDS = 120.0
WORKER_REMOVED_SECONDS = 30.0

PATIENT_FLAGS: Mapping[str, object] = {
    "disable_worker_overload_protection": True,
    "worker_wedge_secs": 3600,
}
"""Defaults for rollouts: they fill every engine's queue on purpose, and one answer may take minutes."""

PAIR_FLAGS: Mapping[str, object] = {"disable_retries": True}
"""Defaults with two engines a request: one still has it when the other fails, and refuses it under the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """How a router is started."""

    python: str = OWN_PYTHON
    """Command of the interpreter that has sglang; where it has no smg, this process's own is taken."""

    host: str = "127.0.0.1"

    flags: Mapping[str, object] = field(default_factory=dict)
    """`--router-*`, by name with underscores."""

    request_timeout_seconds: int = 14400

    is_disaggregated: bool = False
    """Each request goes to an engine that computes its prompt and to one that decodes."""

    start_timeout_seconds: float = 60.0


class RouterHandle(HttpHandle):
    """A router by its address, whoever started it."""

    def is_up(self) -> bool:
        with suppress(SlimeStagesError):
            self.call("GET", "/liveness")
            return True
        return False

    def workers(self) -> dict[str, dict[str, Any]]:
        """What the router says of each engine, by the engine's address."""
        return {worker["url"].rstrip("/"): worker for worker in self.call("GET", "/workers")["workers"]}

    def add(self, url: str, *, worker_type: str = "regular", bootstrap_port: int | None = None) -> None:
        """Have an engine get requests; returns once it does. RetryableError if the router does not take it."""
        body: dict[str, object] = {"url": url, "worker_type": worker_type}
        if bootstrap_port is not None:
            body["bootstrap_port"] = bootstrap_port
        deadline = time.monotonic() + WORKER_READY_SECONDS
        status, is_told = "not listed", False
        while time.monotonic() < deadline:
            worker = self.workers().get(url.rstrip("/"))
            was_listed, status = status != "not listed", str(worker["status"]) if worker else "not listed"
            if status == "ready":
                return
            if worker is None and (was_listed or not is_told):  # one that was removed is listed for some seconds more
                with suppress(DataError):
                    self.call("POST", "/workers", body)
                is_told = True
            time.sleep(POLL_SECONDS)
        raise RetryableError(f"the router {self.url} does not take the engine {url}: it is {status}")

    def remove(self, url: str) -> None:
        """Have an engine get nothing more; returns once it does not, unknown ones are no error."""
        worker = self.workers().get(url.rstrip("/"))
        if worker is None:
            return
        self.call("DELETE", f"/workers/{worker['id']}")
        deadline = time.monotonic() + WORKER_REMOVED_SECONDS  # the router only writes it down, and does it when it can
        while (worker := self.workers().get(url.rstrip("/"))) and worker["status"] == "ready":
            if time.monotonic() > deadline:
                raise RetryableError(f"the router {self.url} keeps the engine {url}, which it was told to remove")
            time.sleep(POLL_SECONDS)


class Router(OwnedServer, RouterHandle):
    """A router of ours."""

    def __init__(self, options: RouterOptions | None = None, *, log: Path) -> None:
        OwnedServer.__init__(self, log)
        RouterHandle.__init__(self, "")
        self.options = options or RouterOptions()

    def start(self, port: int | None = None) -> None:
        """Start it on a free port, or on `port` again, and return once it answers."""

        def bring_up(_: int, log_start: int) -> None:
            self._launch(port or free_port(self.options.host))
            self._wait(log_start)

        self._try_ports(bring_up)

    def _launch(self, port: int) -> None:
        self.url = f"http://{self.options.host}:{port}"
        self._process.start(router_command(self.options, port), _environment(), self.log)

    def _wait(self, log_start: int) -> None:
        deadline = time.monotonic() + self.options.start_timeout_seconds
        while not self.is_up():
            if (code := self._process.exit_code()) is not None:
                raise explain_failure(read_log(self.log, log_start), code, self.log, program="router")
            if time.monotonic() > deadline:
                waited = f"{self.options.start_timeout_seconds:.0f} s"
                raise RetryableError(f"the router is not up after {waited}", hint=f"less {self.log}")
            time.sleep(POLL_SECONDS)


def router_command(options: RouterOptions, port: int) -> list[str]:
    """The words that start a router on `port`.

    Which engines are alive is seen to by who started them: the router's own checks would take an engine out that is
    only busy, or paused while its weights change.
    """
    python = options.python if inspect_installation(options.python).router_flags else OWN_PYTHON
    installation = inspect_installation(python)
    pairs = PAIR_FLAGS if options.is_disaggregated else {}
    defaults = {"request_timeout_secs": options.request_timeout_seconds, **PATIENT_FLAGS, **pairs}
    owned = {
        "host": options.host,
        "port": port,
        "prometheus_host": options.host,
        "prometheus_port": free_port(options.host),
        "disable_health_check": True,
        "disable_circuit_breaker": True,
        "disable_tokenizer_autoload": True,
        "pd_disaggregation": options.is_disaggregated,
    }
    flags = {
        **{name: value for name, value in defaults.items() if name in installation.router_flags},
        **check_router_flags(options.flags, python),
        **{name: value for name, value in owned.items() if name in installation.router_flags},
    }
    return [*installation.python, "-m", "smg.launch_router", *to_words(flags, installation.router_flags)]


def _environment() -> dict[str, str]:
    """Engines are asked directly, past any proxy."""
    proxies = ("http_proxy", "https_proxy", "all_proxy")
    environment = {name: value for name, value in os.environ.items() if name.lower() not in proxies}
    return environment | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}

"""The real router, before servers that answer as engines do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime_stages.errors import UsageError
from slime_stages.serving.client import EngineClient
from slime_stages.serving.router import Router, RouterHandle, RouterOptions, router_command
from tests.slime_stages.serving.fake_engine import FakeEngine, serving

OWNER = """
import sys, time
from pathlib import Path
from slime_stages.serving.router import Router

with Router(log=Path(sys.argv[1])) as router:
    print(router.url, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(FakeEngine())) for _ in range(2)]


async def ask(url: str, sessions: list[str]) -> None:
    async with EngineClient(url, vocab_size=100, timeout_seconds=30) as client:
        for number, session in enumerate(sessions):
            extra = {"return_routed_experts": True}
            await client.generate([1, 2], {}, rid=f"{session}-{number}", routing_key=session, extra=extra)


def sessions_of(engine: FakeEngine) -> set[str]:
    return {body["routing_key"] for body in engine.generated}


async def test_all_turns_of_a_session_reach_one_engine(engines: list[FakeEngine], tmp_path: Path) -> None:
    sessions = [f"session-{number}" for number in range(16)]
    options = RouterOptions(flags={"policy": "consistent_hashing", "log_level": "warn"})

    with Router(options, log=tmp_path / "router.log") as router:
        for engine in engines:
            router.add(engine.url)
        await ask(router.url, sessions * 3)

    one, other = map(sessions_of, engines)
    assert one
    assert other
    assert one & other == set()
    assert one | other == set(sessions)
    assert sum(len(engine.generated) for engine in engines) == 48


async def test_fields_of_a_request_pass_the_router(engines: list[FakeEngine], tmp_path: Path) -> None:
    with Router(log=tmp_path / "router.log") as router:
        router.add(engines[0].url)
        await ask(router.url, ["a"])

    [body] = engines[0].generated
    assert body["input_ids"] == [1, 2]
    assert body["rid"] == "a-0"
    assert body["return_routed_experts"] is True


async def test_an_engine_that_is_removed_gets_nothing_more(engines: list[FakeEngine], tmp_path: Path) -> None:
    with Router(RouterOptions(flags={"policy": "round_robin"}), log=tmp_path / "router.log") as router:
        for engine in engines:
            router.add(engine.url)
            router.add(engine.url)  # known already

        router.remove(engines[0].url)
        router.remove("http://127.0.0.1:1")
        await ask(router.url, ["a", "b", "c", "d"])

    assert [len(engine.generated) for engine in engines] == [0, 4]


async def test_each_request_goes_to_an_engine_for_the_prompt_and_to_one_that_decodes(
    engines: list[FakeEngine], tmp_path: Path
) -> None:
    prefill, decode = engines

    with Router(RouterOptions(is_disaggregated=True), log=tmp_path / "router.log") as router:
        router.add(prefill.url, worker_type="prefill", bootstrap_port=8998)
        router.add(decode.url, worker_type="decode")
        await ask(router.url, ["a"])
        kinds = {worker["url"]: worker["worker_type"] for worker in router.workers().values()}

    assert kinds == {prefill.url: "prefill", decode.url: "decode"}
    assert prefill.generated[0]["bootstrap_port"] == decode.generated[0]["bootstrap_port"] == 8998
    assert prefill.generated[0]["bootstrap_room"] == decode.generated[0]["bootstrap_room"]


def test_a_request_is_not_sent_again_under_its_id_while_one_engine_of_a_pair_may_still_have_it() -> None:
    told = RouterOptions(is_disaggregated=True, flags={"disable_retries": False})

    assert "--disable-retries" in router_command(RouterOptions(is_disaggregated=True), 1)
    assert "--disable-retries" not in router_command(told, 1)
    assert "--disable-retries" not in router_command(RouterOptions(), 1)


def test_an_engine_that_comes_back_at_once_is_taken_again(engines: list[FakeEngine], tmp_path: Path) -> None:
    with Router(log=tmp_path / "router.log") as router:
        router.add(engines[0].url)

        router.remove(engines[0].url)
        router.add(engines[0].url)

        assert [worker["status"] for worker in router.workers().values()] == ["ready"]


def test_an_engine_that_the_router_has_yet_to_remove_is_not_taken_for_one_that_is_back() -> None:
    """The router answers a removal at once, and starts on it when its queue allows."""
    url = "http://127.0.0.1:1"
    coming = {"DELETE": ["ready", "ready", "draining", "draining", ""], "POST": ["pending", "ready"]}

    class BusyRouter(RouterHandle):
        def __init__(self) -> None:
            super().__init__("http://127.0.0.1:2")
            self.statuses = ["ready"]

        def call(self, method: str, path: str, body: object = None, **_: object) -> Any:
            if method != "GET":
                self.statuses = coming[method].copy()
                return None
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return {"workers": [{"id": "1", "url": url, "status": status}] if status else []}

    router = BusyRouter()

    router.remove(url)
    assert router.workers()[url]["status"] == "draining"

    router.add(url)
    assert router.statuses == ["ready"]


def test_the_router_comes_back_at_its_old_address(tmp_path: Path) -> None:
    with Router(log=tmp_path / "router.log") as router:
        url = router.url
        router.stop()

        router.start(int(url.rpartition(":")[2]))

        assert router.url == url
        assert router.is_up()


def test_an_option_that_the_router_refuses_is_a_usage_error_in_its_words(tmp_path: Path) -> None:
    router = Router(RouterOptions(flags={"policy": "fastest"}), log=tmp_path / "router.log")

    with pytest.raises(UsageError, match="smg refuses its options: argument --policy: invalid choice: 'fastest'"):
        router.start()

    assert not router.is_alive()


def test_no_router_is_left_when_its_owner_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "router.log")]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert owner.stdout is not None
    owner.stdout.readline()
    processes = psutil.Process(owner.pid).children(recursive=True)

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(processes, timeout=15)

    assert len(processes) == 2  # the guard and the router
    assert alive == []

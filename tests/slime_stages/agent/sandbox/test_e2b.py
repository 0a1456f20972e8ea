"""E2B's own SDK over the wire: what it asks for, and what becomes of answers that are no good.

What it does as every kind of sandbox does is in `test_every_kind.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slime_stages.agent.sandbox.e2b import IMAGE_KEY, LIFETIME, E2BSandbox
from slime_stages.agent.sandbox.e2b_service import RETRIES
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import DataError, InternalError, RetryableError, UsageError
from slime_stages.isolation.enclosure import Bind
from tests.slime_stages.agent.sandbox.e2b_server import E2BServer, Fault

CREATE, START, FILES = "/v2/sandboxes", "/process.Process/Start", "/files"


@pytest.fixture
def settings(e2b_service: E2BServer, tmp_path: Path) -> SandboxSettings:
    return SandboxSettings(image="base", workdir=str(tmp_path / "workspace"), lifetime_seconds=60)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of our own between attempts, which are counted instead."""
    taken: list[float] = []

    def longest(_: float, most: float) -> float:
        taken.append(most)
        return 0.0

    monkeypatch.setattr("slime_stages.agent.sandbox.e2b_service.random.uniform", longest)
    return taken


async def test_a_sandbox_is_created_with_its_limits_used_and_killed(
    settings: SandboxSettings, e2b_service: E2BServer
) -> None:
    async with E2BSandbox(settings) as sandbox:
        completed = await sandbox.exec("pwd", user="agent")

    assert completed.stdout == f"{settings.workdir}\n"  # which the template did not have
    assert sandbox.sandbox_id == "box1"
    assert e2b_service.created == [
        {"templateID": "base", "timeout": 60, "allow_internet_access": False, "metadata": {}, "envVars": {}}
    ]
    assert (e2b_service.users, e2b_service.killed) == (["root", "agent"], ["box1"])


async def test_an_image_may_be_named_by_metadata(
    settings: SandboxSettings, e2b_service: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IMAGE_KEY, "image")
    monkeypatch.setenv(LIFETIME, "90")
    changed = SandboxSettings(image="docker.io/library/busybox", workdir=settings.workdir, network="host")

    async with E2BSandbox(changed):
        pass

    assert e2b_service.created == [
        {
            "templateID": "base",
            "metadata": {"image": "docker.io/library/busybox"},
            "timeout": 90,
            "allow_internet_access": True,
            "envVars": {},
        }
    ]


async def test_a_service_that_is_busy_is_asked_again_later_by_the_sdk_and_then_by_us(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    e2b_service.faults = [Fault(CREATE, 429, "slow down", retry_after=0)] * 5 + [Fault(CREATE, 503, "busy")]

    async with E2BSandbox(settings):
        pass

    assert len(pauses) == 1  # the SDK makes three further attempts of its own
    assert len(set(e2b_service.keys)) == 1  # so that none of them starts another
    assert len(e2b_service.created) == 1


async def test_a_command_that_was_refused_for_the_rate_is_sent_again_with_growing_pauses(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float]
) -> None:
    async with E2BSandbox(settings) as sandbox:
        e2b_service.faults = [Fault(START, 429, "slow down")] * 3

        assert (await sandbox.exec("echo a", idempotent=False)).stdout == "a\n"

    assert pauses == [1.0, 2.0, 4.0]


async def test_a_rate_limit_without_end_is_an_error(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RETRIES, "2")
    async with E2BSandbox(settings) as sandbox:
        e2b_service.faults = [Fault(START, 429, "slow down")] * 3
        with pytest.raises(RetryableError, match="E2B, sandbox box1: RateLimitException: slow down") as caught:
            await sandbox.exec("echo a")

    assert caught.value.hint == "is the service up? SLIME_AGENT_SANDBOX_RPC_RETRIES=5 asks for longer"


async def test_a_command_whose_connection_was_lost_is_ended_and_sent_again(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float]
) -> None:
    async with E2BSandbox(settings) as sandbox:
        e2b_service.faults = [Fault(START, 0)]
        completed = await sandbox.exec("echo $$ >> pids; sleep 1; cat pids | wc -l; kill -0 $(head -n 1 pids)")

    assert completed.stdout == "2\n"
    assert "No such process" in completed.stderr
    assert pauses == [1.0]


async def test_a_command_that_must_not_run_twice_is_not_sent_again_when_its_connection_is_lost(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float]
) -> None:
    async with E2BSandbox(settings) as sandbox:
        e2b_service.faults = [Fault(START, 0)]
        with pytest.raises(RetryableError, match="E2B, sandbox box1: SandboxUnreachableException"):
            await sandbox.exec("echo ran >> runs", idempotent=False)

        assert (await sandbox.exec("sleep 0.3; cat runs")).stdout == "ran\n"
    assert pauses == []


async def test_a_connection_that_is_lost_after_the_end_loses_nothing(
    settings: SandboxSettings, e2b_service: E2BServer
) -> None:
    async with E2BSandbox(settings) as sandbox:
        e2b_service.faults = [Fault(START, 0, after=3)]  # the start, stdout, and what ends stderr

        assert await sandbox.exec("echo a; exit 5", idempotent=False) == (5, "a\n", "")


async def test_files_that_are_lost_on_their_way_are_sent_again(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float], tmp_path: Path
) -> None:
    async with E2BSandbox(settings) as sandbox:
        e2b_service.faults = [Fault(FILES, 500, "oops"), Fault(FILES, 502, "port is not open")]
        await sandbox.write_file(f"{settings.workdir}/a", b"\0\1")
        e2b_service.faults = [Fault(FILES, 429, "slow down")]
        await sandbox.download(settings.workdir, tmp_path / "out")

    assert (tmp_path / "out" / "a").read_bytes() == b"\0\1"
    assert len(pauses) == 3


async def test_a_sandbox_that_is_gone_is_told_of_at_once(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float]
) -> None:
    async with E2BSandbox(settings) as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 1"))
        await asyncio.sleep(0.3)
        e2b_service.running.clear()
        with pytest.raises(RetryableError, match="the sandbox box1 is gone: SandboxNotRunningException") as caught:
            await sandbox.exec("echo")
        await running

    assert caught.value.hint == "more `lifetime_seconds`, if its time was up"
    assert pauses == []


async def test_what_no_further_attempt_can_mend_is_told_of_at_once(
    settings: SandboxSettings, e2b_service: E2BServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with E2BSandbox(settings) as sandbox:
        with pytest.raises(UsageError, match=r"does not let sandbox box1 do that: .*invalid username: 'nobody-else'"):
            await sandbox.exec("echo", user="nobody-else")
        sandbox.workdir = "/none"
        with pytest.raises(UsageError, match=r"E2B refuses what box1 asks: .*cwd '/none' does not exist"):
            await sandbox.exec("echo")
        e2b_service.faults = [Fault(FILES, 507, "no space left")]
        with pytest.raises(DataError, match="the disk of box1 is full"):
            await sandbox.write_file("/tmp/a", "a")
        with pytest.raises(InternalError, match="a command of ours in box1 ended with 1: mkdir"):
            await sandbox._do("mkdir", "/proc/none")
    with pytest.raises(UsageError, match="template 'none' not found"):
        async with E2BSandbox(SandboxSettings(image="none")):
            pass
    monkeypatch.setenv("E2B_API_KEY", "e2b_wrong")
    with pytest.raises(UsageError, match="Invalid API key") as caught:
        async with E2BSandbox(settings):
            pass
    assert caught.value.hint is not None
    assert "export E2B_API_KEY=" in caught.value.hint
    assert pauses == []


async def test_a_folder_that_is_too_large_is_not_fetched(
    settings: SandboxSettings, e2b_service: E2BServer, tmp_path: Path
) -> None:
    limited = SandboxSettings(image="base", workdir=settings.workdir, disk_bytes=1 << 20)

    async with E2BSandbox(limited) as sandbox:
        await sandbox.exec("head -c 2M /dev/zero > a")
        with pytest.raises(DataError, match=r"workspace in box1 has 2 MiB, more than the 1 allowed"):
            await sandbox.download(settings.workdir, tmp_path / "out")
        assert (await sandbox.exec("ls /tmp/.archive-*")).stdout == ""


async def test_what_e2b_cannot_do_is_said_at_once(settings: SandboxSettings) -> None:
    with pytest.raises(UsageError, match="sees no path of this machine"):
        E2BSandbox(SandboxSettings(binds=(Bind(source="/a", target="/a"),)))
    with pytest.raises(UsageError, match=r"cannot reach http://127\.0\.0\.1:1"):
        await E2BSandbox(settings).reach("http://127.0.0.1:1")
    assert await E2BSandbox(settings).reach("http://adapter.example:1") == "http://adapter.example:1"

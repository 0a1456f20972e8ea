"""Sandboxes at E2B: what its SDK is asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import e2b
import pytest

from slime_stages.agent.sandbox import e2b as ours
from slime_stages.agent.sandbox.e2b import E2BSandbox
from slime_stages.agent.sandbox.protocol import OUT_OF_TIME
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import RetryableError, UsageError
from slime_stages.isolation.enclosure import Bind
from tests.slime_stages.agent.sandbox.fake_e2b import FakeSdk


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSdk:
    sdk = FakeSdk(tmp_path)
    monkeypatch.setattr(ours, "_load_sdk", lambda: sdk)
    return sdk


async def test_a_sandbox_is_created_with_its_limits_used_and_killed(sdk: FakeSdk) -> None:
    async with E2BSandbox(SandboxSettings(image="base", lifetime_seconds=60)) as sandbox:
        completed = await sandbox.exec("echo $A $HOME; echo why >&2; exit 3", user="agent", env={"A": "1"})

    assert completed == (3, "1 /home/agent\n", "why\n")
    assert sandbox.sandbox_id == "e2b-7"
    assert sdk.created == [{"template": "base", "metadata": None, "timeout": 60, "allow_internet_access": False}]
    assert (sdk.users, sdk.killed) == (["agent"], 1)


async def test_an_image_may_be_named_by_metadata(sdk: FakeSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ours.IMAGE_KEY, "image")
    monkeypatch.setenv(ours.LIFETIME, "90")

    async with E2BSandbox(SandboxSettings(image="docker.io/library/busybox", network="host")):
        pass

    assert sdk.created == [
        {
            "template": None,
            "metadata": {"image": "docker.io/library/busybox"},
            "timeout": 90,
            "allow_internet_access": True,
        }
    ]


async def test_files_go_in_and_out_at_e2b(sdk: FakeSdk, tmp_path: Path) -> None:
    async with E2BSandbox(SandboxSettings()) as sandbox:
        await sandbox.write_file(f"{tmp_path}/within/a", bytes(range(256)))
        await sandbox.upload(tmp_path / "within", f"{tmp_path}/copy")
        await sandbox.write_file(f"{tmp_path}/text", "ä")
        assert await sandbox.read_file(f"{tmp_path}/text") == "ä"
        await sandbox.download(f"{tmp_path}/copy", tmp_path / "out")

    assert (tmp_path / "out" / "a").read_bytes() == bytes(range(256))


async def test_a_command_out_of_time_is_no_error(sdk: FakeSdk) -> None:
    async with E2BSandbox(SandboxSettings()) as sandbox:
        assert (await sandbox.exec("sleep 9", timeout=0.2)).code == OUT_OF_TIME


async def test_a_lost_connection_is_tried_again_but_not_for_a_command_that_must_not_run_twice(
    sdk: FakeSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_pause(_: float) -> None: ...

    monkeypatch.setattr(asyncio, "sleep", no_pause)
    async with E2BSandbox(SandboxSettings()) as sandbox:
        sdk.failures = [e2b.SandboxUnreachableException("lost"), ConnectionResetError("lost")]
        assert (await sandbox.exec("echo a")).stdout == "a\n"

        sdk.failures = [ConnectionResetError("lost")]
        with pytest.raises(RetryableError, match="e2b-7: ConnectionResetError: lost"):
            await sandbox.exec("echo a", idempotent=False)

        sdk.failures = [e2b.SandboxNotRunningException("the sandbox was not found")]
        with pytest.raises(RetryableError, match="was not found"):
            await sandbox.exec("echo a")


async def test_what_e2b_cannot_do_is_said_at_once(sdk: FakeSdk) -> None:
    with pytest.raises(UsageError, match="sees no path of this machine"):
        E2BSandbox(SandboxSettings(binds=(Bind(source="/a", target="/a"),)))
    with pytest.raises(UsageError, match=r"cannot reach http://127\.0\.0\.1:1"):
        await E2BSandbox(SandboxSettings()).reach("http://127.0.0.1:1")
    assert await E2BSandbox(SandboxSettings()).reach("http://adapter.example:1") == "http://adapter.example:1"

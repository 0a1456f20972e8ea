"""What every kind of sandbox does alike: namespaces, bubblewrap, Apptainer, and E2B by its own SDK."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from slime_stages.agent.sandbox.detached import OUT_OF_BUDGET, exec_and_wait
from slime_stages.agent.sandbox.protocol import OUT_OF_TIME, Completed
from slime_stages.errors import DataError, InternalError
from tests.slime_stages.agent.sandbox.local_sandboxes import OpenBox, open_file_count, wait_until

OWN = f"{os.getpid():07}"
"""Tells the processes of this run from those of others, where a sandbox sees them all."""


async def test_a_command_starts_in_the_workspace_and_ends_with_its_code(box: OpenBox) -> None:
    async with box() as sandbox:
        completed = await sandbox.exec("pwd; echo $HOME >&2; exit 3", user="agent")

    assert completed == Completed(3, f"{sandbox.workdir}\n", "/home/agent\n")


async def test_a_program_with_arguments_is_run_as_it_is(box: OpenBox) -> None:
    async with box(env=(("A", "1"),)) as sandbox:
        completed = await sandbox.exec(["sh", "-c", 'echo "$A $B $0"', "a  b; exit 1"], env={"B": "2"})

    assert completed == (0, "1 2 a  b; exit 1\n", "")


async def test_a_variable_arrives_as_it_is_whatever_it_holds(box: OpenBox) -> None:
    value = "a,b=c \"d\" 'e' $HOME $(id) `id` \\ \n ä"

    async with box() as sandbox:
        completed = await sandbox.exec('printf "%s" "$A"', env={"A": value, "PATH": "/opt/agents/bin:/usr/bin:/bin"})
        path = await sandbox.exec('printf "%s" "$PATH"', env={"PATH": "/opt/agents/bin:/usr/bin:/bin"})

    assert completed == (0, value, "")
    assert path.stdout == "/opt/agents/bin:/usr/bin:/bin"


async def test_a_program_that_is_not_there_or_is_killed_has_the_codes_of_a_shell(box: OpenBox) -> None:
    async with box() as sandbox:
        missing = await sandbox.exec(["no-such-program"])
        killed = await sandbox.exec("echo before; kill -9 $$")

    assert missing.code == 127
    assert "no-such-program" in missing.stderr
    assert killed == (137, "before\n", "")


async def test_files_go_in_and_out(box: OpenBox, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "tool").write_text("#!/bin/sh\necho run\n")
    (folder / "deep" / "tool").chmod(0o755)
    (tmp_path / "bytes").write_bytes(bytes(range(256)))

    async with box() as sandbox:
        await sandbox.write_file(f"{sandbox.workdir}/new/text", "ä\n")
        await sandbox.write_file(f"{sandbox.workdir}/bytes", tmp_path / "bytes")
        await sandbox.upload(folder, f"{sandbox.workdir}/up")
        assert await sandbox.read_file(f"{sandbox.workdir}/new/text") == "ä\n"
        assert await sandbox.read_file(f"{sandbox.workdir}/none") == ""
        assert await sandbox.exec("up/deep/tool") == (0, "run\n", "")
        await sandbox.download(sandbox.workdir, tmp_path / "out")

    assert (tmp_path / "out" / "bytes").read_bytes() == bytes(range(256))
    assert (tmp_path / "out" / "up" / "deep" / "tool").stat().st_mode & 0o777 == 0o755


async def test_a_command_out_of_time_is_killed_with_all_that_it_started(box: OpenBox) -> None:
    async with box() as sandbox:
        started = time.monotonic()
        completed = await sandbox.exec(f"echo early; (setsid sleep 71.{OWN} &) ; sleep 72.{OWN}", timeout=1)

        assert completed == (OUT_OF_TIME, "early\n", "killed after 1 s\n")
        assert time.monotonic() - started < 10
        assert (await sandbox.exec(f"pgrep -f 'sleep 7[12].{OWN}'")).stdout == ""


async def test_a_command_whose_caller_is_cancelled_is_killed(box: OpenBox) -> None:
    async with box() as sandbox:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.exec(f"(setsid sleep 73.{OWN} &); sleep 74.{OWN}"), 1)

        assert (await sandbox.exec(f"sleep 0.3; pgrep -f 'sleep 7[34].{OWN}'")).stdout == ""


async def test_a_daemon_lives_on_and_keeps_nobody_waiting(box: OpenBox) -> None:
    async with box() as sandbox:
        started = time.monotonic()
        assert await sandbox.exec(f"setsid sleep 15.{OWN} & echo started") == (0, "started\n", "")
        assert time.monotonic() - started < 8
        assert (await sandbox.exec(f"pgrep -f 'sleep 1[5].{OWN}'")).code == 0
        await sandbox.exec(f"pkill -f 'sleep 1[5].{OWN}'")


async def test_commands_run_side_by_side(box: OpenBox) -> None:
    async with box() as sandbox:
        started = time.monotonic()
        codes = await asyncio.gather(*(sandbox.exec(f"sleep 1; exit {number}") for number in range(8)))

    assert [completed.code for completed in codes] == list(range(8))
    assert time.monotonic() - started < 8


async def test_output_without_end_is_cut_in_the_middle(box: OpenBox) -> None:
    async with box(output_bytes=1000) as sandbox:
        completed = await sandbox.exec("echo first; head -c 3000000 /dev/zero; echo last")

    assert completed.stdout.startswith("first\n")
    assert completed.stdout.endswith("last\n")
    assert len(completed.stdout) < 1100
    assert "bytes left out" in completed.stdout


async def test_a_checked_command_that_fails_is_an_error_with_its_words(box: OpenBox) -> None:
    async with box() as sandbox:
        with pytest.raises(InternalError, match="ended with 4: why"):
            await sandbox.exec("echo why >&2; exit 4", check=True)


async def test_every_command_is_a_line_of_the_log(box: OpenBox, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "sample-3.jsonl"

    async with box(log=log) as sandbox:
        await sandbox.exec("echo a; exit 1")
        await sandbox.exec(["echo", "b c"])
        await sandbox.download(sandbox.workdir, tmp_path / "out")

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["command"], line["code"], line["stdout"]) for line in lines] == [
        ("echo a; exit 1", 1, "a\n"),
        ("echo 'b c'", 0, "b c\n"),
    ]


async def test_a_file_that_cannot_be_written_is_an_error_that_names_it(box: OpenBox) -> None:
    async with box() as sandbox:
        with pytest.raises(DataError, match=rf"/proc/none/a in {sandbox.sandbox_id} cannot be transferred: "):
            await sandbox.write_file("/proc/none/a", "")
        with pytest.raises(DataError, match=rf"/none in {sandbox.sandbox_id} cannot be transferred: "):
            await sandbox.download("/none", Path("/none"))


async def test_no_file_is_left_open(box: OpenBox) -> None:
    async with box() as sandbox:
        await sandbox.exec("sleep 9", timeout=0.5)
        before = open_file_count()
        await sandbox.exec("echo")
        await sandbox.exec("sleep 9", timeout=0.5)

        assert wait_until(lambda: open_file_count() <= before)  # E2B's server is in this process, too


async def test_a_detached_command_ends_with_its_code_or_at_its_budget(box: OpenBox) -> None:
    async with box() as sandbox:
        sandbox.poll_seconds = 0.2
        state = f"t{OWN}"
        good = await exec_and_wait(
            sandbox, "echo $A; pwd", time_budget_sec=20, tag=state, env={"A": "1"}, workdir="/tmp", want_output=True
        )
        late = await exec_and_wait(sandbox, f"echo begun; sleep 81.{OWN}", time_budget_sec=1, tag=state)

        assert good == (0, "1\n/tmp\n")
        assert late == (OUT_OF_BUDGET, "begun\n")
        assert (await sandbox.exec(f"sleep 0.1; pgrep -f 'sleep 8[1].{OWN}'")).stdout == ""
        await sandbox.exec(f"rm -rf /tmp/.{state}*")

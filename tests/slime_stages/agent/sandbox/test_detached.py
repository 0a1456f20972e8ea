"""Commands that outlive the connection that started them."""

from __future__ import annotations

from slime_stages.agent.sandbox.detached import OUT_OF_BUDGET, _launch, exec_and_wait
from tests.slime_stages.agent.sandbox.local_sandboxes import local_sandbox


async def test_a_command_ends_with_its_code_and_its_output_if_that_is_wanted() -> None:
    async with local_sandbox() as sandbox:
        good = await exec_and_wait(
            sandbox, "echo $A; pwd", time_budget_sec=9, tag="t", env={"A": "1"}, workdir="/tmp", want_output=True
        )
        silent = await exec_and_wait(sandbox, "echo again", time_budget_sec=9, tag="t", out_file="/workspace/o/out")
        bad = await exec_and_wait(sandbox, "seq 1000; exit 7", time_budget_sec=9, tag="t")

        assert good == (0, "1\n/tmp\n")
        assert silent == (0, "")
        assert await sandbox.read_file("/workspace/o/out") == "again\n"
        assert bad[0] == 7
        assert bad[1].endswith("999\n1000\n")
        assert len(bad[1]) == 512


async def test_a_command_over_its_budget_is_killed() -> None:
    async with local_sandbox() as sandbox:
        code, output = await exec_and_wait(sandbox, "echo begun; sleep 81", time_budget_sec=0.5, tag="t")

        assert (code, output) == (OUT_OF_BUDGET, "begun\n")
        assert (await sandbox.exec("sleep 0.1; pgrep -f 'sleep 8[1]'")).stdout == ""


async def test_a_command_that_is_sent_twice_runs_once() -> None:
    async with local_sandbox() as sandbox:
        await sandbox.write_file("/tmp/.t.sh", "echo ran >> /workspace/runs")
        for _ in range(2):
            await sandbox.exec(_launch("/tmp/.t", "/tmp/.t.out"), check=True)

        assert (await sandbox.exec("sleep 0.3; cat runs")).stdout == "ran\n"

"""Run a command for longer than a connection to a sandbox may last."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping

from slime_stages.agent.sandbox.protocol import Sandbox

OUT_OF_BUDGET = -1
_EXCERPT_BYTES = 512
_KILL = 'kill -9 -- -"$(cat {state}.pid)" 2> /dev/null; exit 0'


async def exec_and_wait(
    sandbox: Sandbox,
    cmd: str,
    *,
    time_budget_sec: float,
    tag: str,
    user: str = "root",
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    out_file: str | None = None,
    want_output: bool = False,
) -> tuple[int, str]:
    """The code of a command that runs on its own, and its output, the end of it if it failed, or nothing.

    Two with the same `tag` must not run at the same time. The code is -1 when the budget is spent; then all of the
    command's process group is killed.
    """
    state = f"/tmp/.{tag}"
    out = out_file or f"{state}.out"
    deadline = time.monotonic() + time_budget_sec
    folder = f"cd {shlex.quote(workdir)}\n" if workdir else ""
    await sandbox.write_file(f"{state}.sh", f"{folder}{cmd}\n", user)
    await sandbox.exec(f"rm -rf {state}.lock {state}.done {state}.pid", user=user, check=True)
    await sandbox.exec(_launch(state, out), user=user, env=env, check=True)
    while not (code := (await sandbox.read_file(f"{state}.done", user)).strip()):
        if time.monotonic() > deadline:
            await sandbox.exec(_KILL.format(state=state), user=user)
            return OUT_OF_BUDGET, await _end_of(sandbox, out, user)
        await asyncio.sleep(min(sandbox.poll_seconds, max(0.0, deadline - time.monotonic())))
    if code != "0":
        return int(code), await _end_of(sandbox, out, user)
    return 0, await sandbox.read_file(out, user) if want_output else ""


def _launch(state: str, out: str) -> str:
    """A folder is the lock: if the request is sent twice over a poor connection, the command still runs once."""
    out = shlex.quote(out)
    steps = (
        f"echo $$ > {state}.pid",
        f"bash {state}.sh > {out} 2>&1 < /dev/null",
        f"echo $? > {state}.new",
        f"mv {state}.new {state}.done",
    )
    start = f"setsid sh -c {shlex.quote('; '.join(steps))} > /dev/null 2>&1 < /dev/null &"
    return f'mkdir {state}.lock 2> /dev/null || exit 0; mkdir -p "$(dirname {out})"; {start}'


async def _end_of(sandbox: Sandbox, path: str, user: str) -> str:
    completed = await sandbox.exec(["tail", "-c", str(_EXCERPT_BYTES), path], user=user)
    return completed.stdout

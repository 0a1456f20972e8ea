"""What driving an agent takes, whoever made it: a user, configuration, a command line, and waiting for its end."""

from __future__ import annotations

import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from slime_stages.agent.sandbox.detached import exec_and_wait
from slime_stages.agent.sandbox.protocol import Sandbox
from slime_stages.errors import UsageError

USER = "agent"
OUTPUT_FOLDER = ".harness"
"""Of the working folder; it holds what the agent said and is no part of its work."""
PROGRAM_FOLDERS = ("/opt/agents/node_modules/.bin", "/opt/agents/bin", f"/home/{USER}/.local/bin")
"""Where an agent's program is looked for before the sandbox's own folders: a bind, or what was installed."""
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREPARE = """
mkdir -p /home/{user} {workdir}
if chown 1 /home/{user} 2> /dev/null; then
  id -u {user} > /dev/null 2>&1 || useradd -s /bin/bash {user}
  chown -R {user} /home/{user} {workdir}
fi
"""
"""Where whoever runs commands may give files away there is more than one user: a root without rights cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessContext:
    """One run of an agent."""

    workdir: str
    session_id: str
    """The adapter's session, and the agent's key to it."""
    adapter_url: str
    """As the agent sees it."""
    time_budget_sec: float
    prompt: str
    model_label: str = "slime-actor"
    """What the agent calls the model."""


class Harness(Protocol):
    """What drives an agent, wherever that runs."""

    async def install_cli(self, sandbox: Sandbox) -> None:
        """Have what the agent needs in the sandbox, where it is not there already."""
        ...

    async def run(
        self,
        sandbox: Sandbox,
        *,
        workdir: str,
        session_id: str,
        adapter_url: str,
        time_budget_sec: float,
        prompt: str,
    ) -> int:
        """Let the agent work on a prompt; its exit code, -1 when its time is up."""
        ...


class BaseHarness(ABC):
    """An agent's program in a sandbox. It holds no state: one object drives any number of runs."""

    extra_args_variable: ClassVar[str]
    extra_envs_variable: ClassVar[str]

    @abstractmethod
    async def install_cli(self, sandbox: Sandbox) -> None:
        """See `Harness`."""

    @abstractmethod
    async def write_config(self, sandbox: Sandbox, context: HarnessContext) -> None:
        """Write what the program reads when it starts."""

    @abstractmethod
    def command(self, context: HarnessContext) -> list[str]:
        """The command line, without what the user adds to it."""

    @abstractmethod
    def environment(self, context: HarnessContext) -> dict[str, str]:
        """Its variables, without those that the user adds."""

    async def launch_and_wait(self, sandbox: Sandbox, context: HarnessContext) -> int:
        """The program's exit code; -1 when its time is up."""
        words = [*self.command(context), *shlex.split(os.environ.get(self.extra_args_variable, ""))]
        code, _ = await exec_and_wait(
            sandbox,
            shlex.join(words),
            time_budget_sec=context.time_budget_sec,
            tag="agent",
            user=USER,
            env={"PATH": path(), **self.environment(context), **extra_environment(self.extra_envs_variable)},
            workdir=context.workdir,
            out_file=f"{context.workdir}/{OUTPUT_FOLDER}/trajectory.jsonl",
        )
        return code

    async def run(
        self,
        sandbox: Sandbox,
        *,
        workdir: str,
        session_id: str,
        adapter_url: str,
        time_budget_sec: float,
        prompt: str,
    ) -> int:
        """See `Harness`."""
        await ensure_agent_user(sandbox, workdir)
        context = HarnessContext(
            workdir=workdir,
            session_id=session_id,
            adapter_url=await sandbox.reach(adapter_url),
            time_budget_sec=time_budget_sec,
            prompt=prompt,
        )
        await self.write_config(sandbox, context)
        return await self.launch_and_wait(sandbox, context)


async def ensure_agent_user(sandbox: Sandbox, workdir: str) -> None:
    """A user for the agent, who owns the working folder and whose git works in any folder."""
    await sandbox.exec(_PREPARE.format(user=USER, workdir=shlex.quote(workdir)), check=True)
    await sandbox.exec(
        "! command -v git || git config --global --replace-all safe.directory '*'", user=USER, check=True
    )


def path() -> str:
    """PATH of an agent."""
    return ":".join((*PROGRAM_FOLDERS, SYSTEM_FOLDERS))


def extra_environment(variable: str) -> Mapping[str, str]:
    """The variables that the user adds, as a JSON object in a variable of this process."""
    text = os.environ.get(variable, "{}")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise UsageError(
            f"{variable} is {text[:100]!r}, which is no JSON object", hint=f"""export {variable}='{{"A": "1"}}'"""
        )
    return {str(name): str(value) for name, value in values.items()}

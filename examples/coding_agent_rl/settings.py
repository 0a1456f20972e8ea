"""What this example can be told: keys of the plug-in settings, or before them variables of that name in capitals."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import UsageError
from slime_stages.isolation.enclosure import Bind

PROMPT = "Read PROBLEM_STATEMENT.md, mend the code in this folder, and run its tests before you say that you are done."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The names are slime's where slime has them."""

    swe_agent: str = "builtin"
    """`builtin`, `claude_code` or `codex`."""
    swe_sandbox: str = "local"
    """`local`, `apptainer`, `e2b`, or package.module:Class."""
    swe_network: str = "none"
    """`host` lets the agent and the tests use the machine's network."""
    swe_agents_folder: str | None = None
    """An npm prefix with the agent's program, which the sandbox sees at /opt/agents."""
    swe_log_folder: str | None = None
    """One file of commands for each sample."""
    swe_prompt: str = PROMPT
    swe_boot_concurrency: int = 16
    """Sandboxes at a time."""
    swe_boot_retries: int = 2
    swe_agent_time_budget_sec: float = 1800
    swe_eval_timeout_sec: float = 600
    swe_rollout_guard_sec: float | None = None
    """For a sample as a whole; by default agent, tests and 180 s."""
    swe_turn_limit: int = 100
    """Of the built-in agent."""
    adapter_bind_host: str = "127.0.0.1"
    adapter_port: int = 0
    adapter_public_host: str | None = None
    """How a sandbox on another machine names this one."""

    @staticmethod
    def of(args: Any) -> Settings:
        """From `args`, as a generate function gets it, and the environment."""
        values: dict[str, Any] = {}
        for field in fields(Settings):
            given = os.environ.get(field.name.upper(), getattr(args, field.name, field.default))
            values[field.name] = _read(field.name, str(field.type), given)
        return Settings(**values)

    @property
    def guard_seconds(self) -> float:
        return self.swe_rollout_guard_sec or self.swe_agent_time_budget_sec + self.swe_eval_timeout_sec + 180

    def sandbox(self) -> SandboxSettings:
        """Of every sandbox; a task adds its image and folder."""
        folder = self.swe_agents_folder
        return SandboxSettings(
            network="host" if self.swe_network == "host" else "none",
            binds=(Bind(source=str(Path(folder).absolute()), target="/opt/agents"),) if folder else (),
            lifetime_seconds=self.guard_seconds,
        )


def _read(name: str, kind: str, given: Any) -> Any:
    if given is None or kind.startswith("str"):
        return given
    try:
        return int(given) if kind.startswith("int") else float(given)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} is {given!r}, which is no number", hint=f"correct {name} or {name.upper()}"
        ) from error

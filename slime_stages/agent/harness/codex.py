"""Codex CLI, which speaks to an adapter of OpenAI's Responses."""

from __future__ import annotations

import json

from slime_stages.agent.harness.base import USER, BaseHarness, HarnessContext
from slime_stages.agent.harness.npm import install_npm_cli
from slime_stages.agent.sandbox.protocol import Sandbox

_CONFIG = """\
model = {model}
model_provider = "slime"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.slime]
name = "slime"
base_url = {url}
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
"""The sandbox around it is ours. `wire_api = "chat"`, which slime writes, is refused by recent versions."""


class CodexHarness(BaseHarness):
    """See `BaseHarness`."""

    extra_args_variable = "SLIME_AGENT_CODEX_EXTRA_ARGS"
    extra_envs_variable = "SLIME_AGENT_CODEX_EXTRA_ENVS"

    async def install_cli(self, sandbox: Sandbox) -> None:
        await install_npm_cli(sandbox, "codex", "SLIME_AGENT_CODEX_TARBALL")

    async def write_config(self, sandbox: Sandbox, context: HarnessContext) -> None:
        # A string in JSON is one in TOML.
        values = {"model": json.dumps(context.model_label), "url": json.dumps(f"{context.adapter_url}/v1")}
        await sandbox.write_file(f"/home/{USER}/.codex/config.toml", _CONFIG.format(**values), USER)

    def command(self, context: HarnessContext) -> list[str]:
        return ["codex", "exec", "--skip-git-repo-check", context.prompt]

    def environment(self, context: HarnessContext) -> dict[str, str]:
        return {"OPENAI_API_KEY": context.session_id}

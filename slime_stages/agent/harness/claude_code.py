"""Claude Code, which speaks to an adapter of Anthropic's Messages."""

from __future__ import annotations

import json

from slime_stages.agent.harness.base import USER, BaseHarness, HarnessContext
from slime_stages.agent.harness.npm import install_npm_cli
from slime_stages.agent.sandbox.protocol import Sandbox

_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
)
"""Without these it asks its vendor's servers, which are not there, and goes on working after its answer."""


class ClaudeCodeHarness(BaseHarness):
    """See `BaseHarness`."""

    extra_args_variable = "SLIME_AGENT_CC_EXTRA_ARGS"
    extra_envs_variable = "SLIME_AGENT_CC_EXTRA_ENVS"

    async def install_cli(self, sandbox: Sandbox) -> None:
        await install_npm_cli(sandbox, "claude", "SLIME_AGENT_CC_TARBALL")

    async def write_config(self, sandbox: Sandbox, context: HarnessContext) -> None:
        """Answer beforehand what it asks a person when it is started for the first time."""
        state = {
            "hasCompletedOnboarding": True,
            "bypassPermissionsModeAccepted": True,
            "projects": {context.workdir: {"hasTrustDialogAccepted": True}},
        }
        settings = {"skipDangerousModePermissionPrompt": True, "includeCoAuthoredBy": False}
        await sandbox.write_file(f"/home/{USER}/.claude.json", json.dumps(state), USER)
        await sandbox.write_file(f"/home/{USER}/.claude/settings.json", json.dumps(settings), USER)

    def command(self, context: HarnessContext) -> list[str]:
        return [
            *("claude", "-p", context.prompt, "--permission-mode", "bypassPermissions"),
            *("--output-format", "stream-json", "--include-partial-messages", "--include-hook-events", "--verbose"),
        ]

    def environment(self, context: HarnessContext) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": context.adapter_url,
            "ANTHROPIC_AUTH_TOKEN": context.session_id,
            "ANTHROPIC_MODEL": context.model_label,
            **dict.fromkeys(_QUIET, "1"),
        }

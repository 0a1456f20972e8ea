"""Claude Code and Codex as their vendors ship them, in a sandbox without a network, against our adapters."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slime_stages.agent.adapters import AnthropicAdapter, BaseAdapter, OpenAIAdapter
from slime_stages.agent.harness.base import BaseHarness
from slime_stages.agent.harness.claude_code import ClaudeCodeHarness
from slime_stages.agent.harness.codex import CodexHarness
from slime_stages.agent.sandbox.local import LocalSandbox
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.isolation.enclosure import Bind
from tests.slime_stages.agent.harness.scripted_model import SESSION, call, saying

PACKAGES = ("@anthropic-ai/claude-code@2.1.197", "@openai/codex@0.171.0")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An npm prefix with both."""
    folder = tmp_path_factory.mktemp("agents")
    subprocess.run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *PACKAGES], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harness", "adapter", "tool", "argument"),
    [
        (ClaudeCodeHarness(), AnthropicAdapter, "Bash", "command"),
        (CodexHarness(), OpenAIAdapter, "exec_command", "cmd"),
    ],
)
async def test_a_real_agent_works_through_the_adapter(
    harness: BaseHarness, adapter: type[BaseAdapter], tool: str, argument: str, programs: Path
) -> None:
    settings = SandboxSettings(binds=(Bind(source=str(programs), target="/opt/agents"),))
    work = {argument: "echo mended > done.txt", **({"description": "mend"} if tool == "Bash" else {})}

    with saying(adapter, [call(tool, **work), "It is done."]) as model:
        async with LocalSandbox(settings) as sandbox:
            await harness.install_cli(sandbox)
            code = await harness.run(
                sandbox,
                workdir="/workspace",
                session_id=SESSION,
                adapter_url=model.url,
                time_budget_sec=120,
                prompt="Mend it.",
            )
            done = await sandbox.read_file("/workspace/done.txt")
            said = await sandbox.read_file("/workspace/.harness/trajectory.jsonl")
        [sample] = await model.samples()

    assert (code, done) == (0, "mended\n")
    assert "It is done." in said
    assert sample.loss_mask is not None
    assert sample.response is not None
    assert "It is done." in sample.response
    assert 0 < sum(sample.loss_mask) < sample.response_length

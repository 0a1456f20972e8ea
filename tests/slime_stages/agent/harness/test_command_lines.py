"""What other people's agents are started with."""

from __future__ import annotations

import json
import lzma
import tomllib
from pathlib import Path

import pytest

from slime_stages.agent.harness.base import BaseHarness
from slime_stages.agent.harness.claude_code import ClaudeCodeHarness
from slime_stages.agent.harness.codex import CodexHarness
from slime_stages.errors import MissingInputError, UsageError
from tests.slime_stages.agent.harness.recording_sandbox import RecordingSandbox

PREFIX = "/home/agent/.local"


async def run(harness: BaseHarness) -> tuple[int, RecordingSandbox, str, dict[str, str]]:
    """The code, the sandbox, the script that was started, and its environment."""
    sandbox = RecordingSandbox()
    code = await harness.run(
        sandbox,
        workdir="/testbed",
        session_id="key-1",
        adapter_url="http://a:1",
        time_budget_sec=9,
        prompt="Mend it, don't ask.",
    )
    [launch] = [number for number, command in enumerate(sandbox.commands) if "setsid" in command]
    return code, sandbox, str(sandbox.files["/tmp/.agent.sh"]), sandbox.environments[launch]


async def test_claude_code_asks_the_adapter_and_no_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIME_AGENT_CC_EXTRA_ARGS", "--model 'a b'")
    monkeypatch.setenv("SLIME_AGENT_CC_EXTRA_ENVS", '{"ANTHROPIC_MODEL": "mine", "N": 1}')

    code, sandbox, script, environment = await run(ClaudeCodeHarness())

    assert code == 5
    assert script == (
        "cd /testbed\nclaude -p 'Mend it, don'\"'\"'t ask.' --permission-mode bypassPermissions"
        " --output-format stream-json --include-partial-messages --include-hook-events --verbose --model 'a b'\n"
    )
    assert environment.pop("PATH").startswith("/opt/agents/node_modules/.bin:")
    assert environment == {
        "ANTHROPIC_BASE_URL": "http://a:1/reached",
        "ANTHROPIC_AUTH_TOKEN": "key-1",
        "ANTHROPIC_MODEL": "mine",
        "N": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    }
    state = json.loads(str(sandbox.files["/home/agent/.claude.json"]))
    assert state["projects"] == {"/testbed": {"hasTrustDialogAccepted": True}}
    assert any("/testbed/.harness/trajectory.jsonl" in command for command in sandbox.commands)


async def test_codex_asks_the_adapter_by_responses() -> None:
    code, sandbox, script, environment = await run(CodexHarness())

    assert code == 5
    assert script == "cd /testbed\ncodex exec --skip-git-repo-check 'Mend it, don'\"'\"'t ask.'\n"
    assert environment["OPENAI_API_KEY"] == "key-1"
    config = tomllib.loads(str(sandbox.files["/home/agent/.codex/config.toml"]))
    assert config["model_providers"]["slime"] == {
        "name": "slime",
        "base_url": "http://a:1/reached/v1",
        "wire_api": "responses",
        "env_key": "OPENAI_API_KEY",
    }
    assert (config["model"], config["model_provider"]) == ("slime-actor", "slime")


async def test_variables_that_are_no_object_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIME_AGENT_CODEX_EXTRA_ENVS", "A=1")

    with pytest.raises(UsageError, match="SLIME_AGENT_CODEX_EXTRA_ENVS is 'A=1', which is no JSON object"):
        await run(CodexHarness())


async def test_a_program_that_is_there_is_not_installed() -> None:
    sandbox = RecordingSandbox()

    await ClaudeCodeHarness().install_cli(sandbox)

    assert sandbox.commands == ['sh -c command -v "$0" claude']


async def test_a_program_is_installed_from_tarballs_by_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.tar.xz").write_bytes(lzma.compress(b"node"))
    (tmp_path / "codex.tgz").write_bytes(b"codex")
    monkeypatch.setenv("SLIME_AGENT_NODE_TARBALL", str(tmp_path / "node.tar.xz"))
    monkeypatch.setenv("SLIME_AGENT_CODEX_TARBALL", str(tmp_path / "codex.tgz"))
    failures = iter([1, 1, 0])
    sandbox = RecordingSandbox(
        lambda command: 1 if "command -v" in command else next(failures) if "npm install" in command else 0
    )

    await CodexHarness().install_cli(sandbox)

    assert sandbox.files == {f"{PREFIX}/node.tar": b"node", f"{PREFIX}/package.tgz": tmp_path / "codex.tgz"}
    assert sum("npm install" in command for command in sandbox.commands) == 3


async def test_a_program_that_is_nowhere_is_named_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = RecordingSandbox(lambda _: 1)

    with pytest.raises(UsageError, match="claude is not in the sandbox, and SLIME_AGENT_CC_TARBALL is not set"):
        await ClaudeCodeHarness().install_cli(sandbox)
    monkeypatch.setenv("SLIME_AGENT_CC_TARBALL", "/none")
    with pytest.raises(MissingInputError, match="SLIME_AGENT_CC_TARBALL is /none"):
        await ClaudeCodeHarness().install_cli(sandbox)

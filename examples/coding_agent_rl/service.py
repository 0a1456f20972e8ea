"""What all samples of a process share: the adapter that agents talk to, the agent, and room for sandboxes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from examples.coding_agent_rl.settings import Settings
from slime_stages.agent.adapters import AnthropicAdapter, BaseAdapter, OpenAIAdapter, run_app_in_thread
from slime_stages.agent.harness.base import Harness
from slime_stages.agent.harness.builtin import BuiltinHarness
from slime_stages.agent.harness.claude_code import ClaudeCodeHarness
from slime_stages.agent.harness.codex import CodexHarness
from slime_stages.agent.sandbox.open import Sandboxes
from slime_stages.errors import UsageError
from slime_stages.prompts.tokenizer import load_tokenizer

AGENTS: dict[str, type[BaseAdapter]] = {
    "builtin": OpenAIAdapter,
    "claude_code": AnthropicAdapter,
    "codex": OpenAIAdapter,
}
"""Each agent, and the protocol that it speaks."""


class Service:
    """An adapter at work before one router, and the agents that use it."""

    def __init__(
        self, settings: Settings, model: Path, router_url: str, parsers: tuple[str | None, str | None]
    ) -> None:
        if settings.swe_agent not in AGENTS:
            raise UsageError(f"there is no agent `{settings.swe_agent}`", hint=f"swe_agent: {', '.join(AGENTS)}")
        tool_parser, reasoning_parser = parsers
        self.settings = settings
        self.adapter = AGENTS[settings.swe_agent](
            load_tokenizer(model), router_url, tool_parser, reasoning_parser, known_sessions_only=True
        )
        self._thread = run_app_in_thread(self.adapter.app, settings.adapter_bind_host, settings.adapter_port)
        self.sandboxes = Sandboxes(settings.swe_sandbox, settings.sandbox(), settings.swe_boot_concurrency)
        self.harness: Harness = _harness(settings)

    @property
    def url(self) -> str:
        """Of the adapter, as sandboxes are told it."""
        host = self.settings.adapter_public_host
        return f"http://{host}:{self._thread.port}" if host else self._thread.url


def service_of(args: Any) -> Service:
    """The process's service for these settings."""
    router_url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    parsers = (args.sglang_tool_call_parser, args.sglang_reasoning_parser)
    return _service(Settings.of(args), Path(args.hf_checkpoint), router_url, parsers)


@cache
def _service(settings: Settings, model: Path, router_url: str, parsers: tuple[str | None, str | None]) -> Service:
    return Service(settings, model, router_url, parsers)


def _harness(settings: Settings) -> Harness:
    if settings.swe_agent == "claude_code":
        return ClaudeCodeHarness()
    if settings.swe_agent == "codex":
        return CodexHarness()
    return BuiltinHarness(turn_limit=settings.swe_turn_limit)

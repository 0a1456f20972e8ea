"""A small coding agent that runs beside the sandbox: nothing of it has to be installed, or to be reached, within."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from slime_stages.agent.harness.base import OUTPUT_FOLDER, USER, ensure_agent_user
from slime_stages.agent.harness.tools import DESCRIPTIONS, Tools
from slime_stages.agent.sandbox.detached import OUT_OF_BUDGET
from slime_stages.agent.sandbox.protocol import Sandbox

_SYSTEM = """\
You are a programmer at work in the folder {workdir}. Use the tools to look around, to change files and to run tests. \
When the task is done, answer in one sentence, without a tool."""
_FINISHED, _REFUSED, _TOO_MANY_TURNS = 0, 1, 2


class BuiltinHarness:
    """An agent with four tools, by OpenAI's Chat Completions: read, edit, grep and bash. See `Harness`."""

    def __init__(self, *, turn_limit: int = 100, model_label: str = "slime-actor") -> None:
        self._turn_limit = turn_limit
        self._model_label = model_label

    async def install_cli(self, sandbox: Sandbox) -> None:
        """Nothing."""

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
        """0 when it says that it is done, 1 if the model's server refuses, 2 after too many turns, -1 out of time."""
        await ensure_agent_user(sandbox, workdir)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": _SYSTEM.format(workdir=workdir)},
            {"role": "user", "content": prompt},
        ]
        try:
            async with asyncio.timeout(time_budget_sec):
                return await self._work(Tools(sandbox, workdir), messages, session_id, adapter_url)
        except TimeoutError:
            return OUT_OF_BUDGET
        finally:
            lines = "".join(f"{json.dumps(message)}\n" for message in messages)
            await sandbox.write_file(f"{workdir}/{OUTPUT_FOLDER}/trajectory.jsonl", lines, USER)

    async def _work(self, tools: Tools, messages: list[dict[str, Any]], session_id: str, adapter_url: str) -> int:
        import aiohttp

        headers = {"Authorization": f"Bearer {session_id}"}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as client:
            for _ in range(self._turn_limit):
                body = {"model": self._model_label, "messages": messages, "tools": DESCRIPTIONS}
                async with client.post(f"{adapter_url}/v1/chat/completions", json=body) as response:
                    answer = await response.json()
                if response.status != 200:
                    messages.append({"role": "error", "content": answer})
                    return _REFUSED
                message = answer["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return _FINISHED
                for call in message["tool_calls"]:
                    content = await _use(tools, call["function"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return _TOO_MANY_TURNS


async def _use(tools: Tools, function: dict[str, Any]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return f"the arguments of {function['name']} are no JSON object"
    return await tools.call(function["name"], arguments)

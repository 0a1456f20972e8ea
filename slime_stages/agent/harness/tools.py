"""What the built-in agent can do in a sandbox, as OpenAI's tools."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from slime_stages.agent.harness.base import USER
from slime_stages.agent.sandbox.protocol import Completed, Sandbox

_SECONDS = 120.0
_SHOWN_CHARACTERS = 16_000
_SHOWN_LINES = 400


class Tools:
    """Tools in one folder of one sandbox. What goes wrong is an answer that says so, never an exception."""

    def __init__(self, sandbox: Sandbox, workdir: str) -> None:
        self._sandbox = sandbox
        self._workdir = workdir
        self._by_name: dict[str, Callable[..., Awaitable[str]]] = {
            "bash": self._bash,
            "read": self._read,
            "edit": self._edit,
            "grep": self._grep,
        }

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the tool answers."""
        tool = self._by_name.get(name)
        if tool is None:
            return f"there is no tool {name}; there are {', '.join(self._by_name)}"
        allowed, required = _parameters(name)
        unknown, missing = sorted(set(arguments) - allowed), sorted(required - set(arguments))
        if unknown or missing:
            return f"{name}: unknown arguments {unknown}, missing {missing}"
        return _cut(await tool(**{key: str(value) for key, value in arguments.items()}))

    async def _bash(self, command: str) -> str:
        ended = await self._run(["bash", "-c", command])
        return f"{ended.stdout}{ended.stderr}" + (f"\n(exit code {ended.code})" if ended.code else "")

    async def _read(self, path: str, first_line: str = "1") -> str:
        first = max(1, int(first_line)) if first_line.isdecimal() else 1
        script = f'cat -n -- "$0" | sed -n "{first},{first + _SHOWN_LINES - 1}p"'
        return _answer(await self._run(["bash", "-o", "pipefail", "-c", script, path])) or "(no such lines)"

    async def _edit(self, path: str, old: str, new: str) -> str:
        existing = await self._run(["cat", "--", path])
        if existing.code != 0:
            if old:
                return existing.stderr
            await self._sandbox.write_file(self._absolute(path), new, USER)
            return f"{path} is new"
        if (count := existing.stdout.count(old)) != 1 or not old:
            return f"`old` stands {count if old else 0} times in {path}; it must stand there once"
        await self._sandbox.write_file(self._absolute(path), existing.stdout.replace(old, new), USER)
        return f"{path} is changed"

    async def _grep(self, pattern: str, path: str = ".") -> str:
        return _answer(await self._run(["grep", "-rnIE", "--", pattern, path])) or "(no match)"

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._workdir}/{path}"

    async def _run(self, words: list[str]) -> Completed:
        line = f"cd {shlex.quote(self._workdir)} && {shlex.join(words)}"
        return await self._sandbox.exec(line, user=USER, timeout=_SECONDS)


def _tool(name: str, description: str, required: tuple[str, ...], **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


DESCRIPTIONS = [
    _tool("bash", "Run a command and see its output.", ("command",), command="a line of bash"),
    _tool(
        "read",
        f"See {_SHOWN_LINES} lines of a file, with their numbers.",
        ("path",),
        path="the file",
        first_line="from which line on, 1 by default",
    ),
    _tool(
        "edit",
        "Replace a text that stands once in a file, or write a new file.",
        ("path", "old", "new"),
        path="the file",
        old="the text as it stands there, lines and spaces included; empty for a new file",
        new="what stands there then",
    ),
    _tool(
        "grep",
        "Find lines in files.",
        ("pattern",),
        pattern="an extended regular expression",
        path="the file or folder, the working folder by default",
    ),
]
"""The tools, as a request to a model carries them."""


def _parameters(name: str) -> tuple[set[str], set[str]]:
    schema = next(tool["function"]["parameters"] for tool in DESCRIPTIONS if tool["function"]["name"] == name)
    return set(schema["properties"]), set(schema["required"])


def _answer(ended: Completed) -> str:
    return ended.stdout or ended.stderr


def _cut(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"

"""Calls that a model writes as XML, whatever format its tool parser expects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

CALL = re.compile(r"<tool_call>\s*<function=([^>\s]+)>(.*?)</function>\s*</tool_call>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)


def take_xml_calls(text: str, tools: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text without its calls of known tools, and those. A value is JSON where the tool's schema wants no text."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    calls = []
    rest, end = "", 0
    for found in CALL.finditer(text):
        name, body = found.groups()
        if name in schemas:
            calls.append((name, _arguments(body, schemas[name])))
            rest, end = rest + text[end : found.start()], found.end()
    return rest + text[end:], calls


def _arguments(body: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    return {key: _value(value.strip(), properties.get(key)) for key, value in PARAMETER.findall(body)}


def _value(text: str, schema: Any) -> Any:
    if not isinstance(schema, dict) or schema.get("type", "string") == "string":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text

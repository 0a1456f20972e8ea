"""What OpenAI's protocols say the model may, must and must not write: tools, their choice, the form of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from slime_stages.agent.adapters.errors import invalid
from slime_stages.agent.adapters.openai_requests import Format, GenerationBody, ToolIn
from slime_stages.agent.adapters.turn import Tool, function_tool, held_to_schema
from slime_stages.agent.parsing.constraints import ANY_OBJECT


class Named(BaseModel):
    """A function by its name, in either API's form."""

    name: str = ""
    function: Named | None = None

    @property
    def called(self) -> str:
        return self.function.name if self.function else self.name


class Allowed(BaseModel):
    mode: Literal["auto", "required"] = "auto"
    tools: list[Named] = Field(default_factory=list)


class ChoiceObject(Named, Allowed):
    """`tool_choice` where it is more than a word."""

    type: Literal["function", "allowed_tools"]
    allowed_tools: Allowed | None = None


def offered_tools(body: GenerationBody) -> list[Tool]:
    """Functions that the model is shown; tools that the vendor would run itself are not."""
    mode, names = _choice(body)
    if mode == "none":
        return []
    tools = [_tool(tool) for tool in body.tools or [] if tool.type == "function"]
    return [tool for tool in tools if tool["function"]["name"] in names] if mode == "auto" and names else tools


def forced_tools(body: GenerationBody) -> list[Tool]:
    """Those of which one has to be called, [] if none has. RequestError for functions that there are not."""
    mode, names = _choice(body)
    if mode != "required":
        return []
    offered = {tool["function"]["name"]: tool for tool in offered_tools(body)}
    if not offered or not {*names} <= {*offered}:
        missing = ", ".join(sorted({*names} - {*offered})) or "one"
        raise invalid(f"tool_choice: a call of {missing} is required, and no such function is in tools")
    strict = {tool.function.name if tool.function else tool.name for tool in body.tools or [] if _is_strict(tool)}
    return [held_to_schema(offered[name], is_strict=name in strict) for name in names or offered]


def json_schema(form: Format | None, field: str, forced: list[Tool]) -> Mapping[str, Any] | None:
    """The schema that the text has to keep; None where it is free. RequestError where a call is."""
    if form is None or form.type == "text":
        return None
    if forced:
        raise invalid(f"{field}: a call is required, so the answer cannot be {form.type}")
    if form.type == "json_object":
        return ANY_OBJECT
    schema = form.json_schema.schema_ if form.json_schema else form.schema_
    if schema is None:
        raise invalid(f"{field}: a json_schema has no schema")
    return schema


def _choice(body: GenerationBody) -> tuple[str, list[str]]:
    """`auto`, `none` or `required`, and the functions that it is about; [] for all."""
    if not isinstance(body.tool_choice, dict):
        return body.tool_choice or "auto", []
    choice = ChoiceObject.model_validate(body.tool_choice)
    if choice.type == "function":
        return "required", [choice.called]
    allowed = choice.allowed_tools or choice
    return allowed.mode, [tool.called for tool in allowed.tools]


def _is_strict(tool: ToolIn) -> bool:
    return bool(tool.function.strict if tool.function else tool.strict)


def _tool(tool: ToolIn) -> Tool:
    if tool.function is not None:
        return function_tool(tool.function.name, tool.function.description, tool.function.parameters)
    if not tool.name:
        raise invalid("tools: a function has no name")
    return function_tool(tool.name, tool.description, tool.parameters)

"""What OpenAI's Chat Completions and Responses APIs are sent, as far as a chat model can be asked it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from slime_stages.agent.adapters.endpoint import RequestBody


class TextPart(BaseModel):
    type: Literal["text", "input_text", "output_text", "reasoning_text", "summary_text"]
    text: str


class RefusalPart(BaseModel):
    type: Literal["refusal"]
    refusal: str


class MediaPart(BaseModel):
    type: Literal["image_url", "input_image", "input_audio", "file", "input_file"]


Part = Annotated[TextPart | RefusalPart | MediaPart, Field(discriminator="type")]
Content = str | list[Part] | None


class FunctionCall(BaseModel):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCallIn(BaseModel):
    id: str | None = None
    function: FunctionCall


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallIn] | None = None


class FunctionIn(BaseModel):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolIn(BaseModel):
    """A tool in either API's form; only functions can be offered to the model."""

    type: str = "function"
    function: FunctionIn | None = None
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Schema(BaseModel):
    """What the text of an answer has to keep; its name and `strict` are for the vendor."""

    model_config = ConfigDict(extra="allow")
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class Format(Schema):
    """A form in either API's form."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: Schema | None = None


class GenerationBody(RequestBody):
    """What both APIs have in common."""

    model: str | None = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class ChatBody(GenerationBody):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    top_k: int | None = Field(default=None, ge=-1)
    stop: str | list[str] | None = None
    n: int | None = Field(default=None, ge=1, le=1)
    stream_options: StreamOptions | None = None
    response_format: Format | None = None


class MessageItem(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]


class FunctionCallItem(FunctionCall):
    type: Literal["function_call"]
    call_id: str


class FunctionOutputItem(BaseModel):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]


class ReasoningItem(BaseModel):
    type: Literal["reasoning"]
    content: list[TextPart] | None = None
    encrypted_content: str | None = None


def _item_type(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return kind if isinstance(kind, str) else ""


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_item_type),
]
"""A message may leave its type out."""


class TextOptions(BaseModel):
    format: Format | None = None


class ResponsesBody(GenerationBody):
    input: str | list[Item] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: TextOptions | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    background: bool | None = None

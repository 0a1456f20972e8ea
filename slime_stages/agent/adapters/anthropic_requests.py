"""What Anthropic's Messages API is sent, as far as a chat model can be asked it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from slime_stages.agent.adapters.endpoint import RequestBody


class Text(BaseModel):
    type: Literal["text"] = "text"
    text: str


class Media(BaseModel):
    """An image or a document; of documents, those that are text can be shown to the model."""

    type: Literal["image", "document"]
    source: dict[str, Any] = Field(default_factory=dict)


class SearchResult(BaseModel):
    type: Literal["search_result"]
    title: str = ""
    content: list[Text] = Field(default_factory=list)


class ToolReference(BaseModel):
    type: Literal["tool_reference"]
    tool_name: str = ""


class ToolResult(BaseModel):
    type: Literal["tool_result"]
    tool_use_id: str = ""
    content: str | list[ResultBlock] | None = None


class ToolUse(BaseModel):
    type: Literal["tool_use"]
    id: str = ""
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class Thinking(BaseModel):
    type: Literal["thinking"]
    thinking: str


class RedactedThinking(BaseModel):
    type: Literal["redacted_thinking"]
    data: str = ""


ResultBlock = Annotated[Text | Media | SearchResult | ToolReference, Field(discriminator="type")]
Block = Annotated[
    Text | Media | SearchResult | ToolReference | ToolResult | ToolUse | Thinking | RedactedThinking,
    Field(discriminator="type"),
]


class MessageIn(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Any]:
        return [Text(text=self.content)] if isinstance(self.content, str) else list(self.content)


class ToolIn(BaseModel):
    """One of the client's own, or one that the vendor defines and that has no schema here."""

    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class Format(BaseModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    format: Format | None = None


class CountBody(RequestBody):
    """What `count_tokens` is sent."""

    messages: list[MessageIn] = Field(min_length=1)
    system: str | list[Text] | None = None
    tools: list[ToolIn] | None = None
    tool_choice: ToolChoice | None = None
    model: str | None = None


class MessagesBody(CountBody):
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    """Where it stood in the API's first form."""


ToolResult.model_rebuild()

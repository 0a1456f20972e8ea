"""Histories of both vendors as the chat messages that a template takes."""

from __future__ import annotations

from typing import Any

import pytest

from slime_stages.agent.adapters.anthropic_messages import chat_messages, chat_tools
from slime_stages.agent.adapters.anthropic_requests import CountBody
from slime_stages.agent.adapters.errors import RequestError
from slime_stages.agent.adapters.openai_choices import offered_tools
from slime_stages.agent.adapters.openai_messages import chat_message, item_messages
from slime_stages.agent.adapters.openai_requests import ChatBody, ResponsesBody


def anthropic_messages(messages: list[Any], **more: Any) -> list[dict[str, Any]]:
    return chat_messages(CountBody(messages=messages, **more), omit_images=False)


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def reminder(text: str) -> dict[str, Any]:
    return {"role": "user", "content": f"<system-reminder>\n{text}\n</system-reminder>\n"}


def test_system_texts_at_the_head_are_one_message() -> None:
    head = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert anthropic_messages([system("c"), user("q")], system=head)[0] == {"role": "system", "content": "a\nb\nc"}
    assert anthropic_messages([user("q")], system="a")[0] == {"role": "system", "content": "a"}


def test_a_system_message_within_the_history_is_a_reminder_behind_the_user_before_it() -> None:
    messages = [user("q"), {"role": "assistant", "content": "a"}, system("s"), user("r")]

    assert anthropic_messages(messages) == [
        {"role": "user", "content": "q"},
        reminder("s"),
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "r"},
    ]


def test_a_system_message_before_any_of_the_users_is_a_reminder_before_the_next_one() -> None:
    messages = [{"role": "assistant", "content": "a"}, system("s"), system("t"), user("q")]

    assert anthropic_messages(messages) == [
        {"role": "assistant", "content": "a"},
        reminder("s"),
        reminder("t"),
        {"role": "user", "content": "q"},
    ]
    assert anthropic_messages(messages[:2]) == [{"role": "assistant", "content": "a"}, reminder("s")]


def test_every_block_of_the_users_is_a_message_and_those_of_an_answer_are_one() -> None:
    answer = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "1", "content": "r"},
        {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": t} for t in "st"]},
        {"type": "text", "text": "go on"},
    ]

    assert anthropic_messages([{"role": "assistant", "content": answer}, {"role": "user", "content": results}]) == [
        {
            "role": "assistant",
            "content": "ab",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "r"},
        {"role": "tool", "content": "s\nt"},
        {"role": "user", "content": "go on"},
    ]


def test_what_else_a_tool_finds_is_text_as_far_as_it_is() -> None:
    found = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}},
        {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "hit"}]},
        {"type": "tool_reference", "tool_name": "f"},
    ]
    result = {"type": "tool_result", "tool_use_id": "1", "content": found}

    assert anthropic_messages([{"role": "user", "content": [result]}]) == [
        {"role": "tool", "content": "doc\nt\nhit\nf"}
    ]


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image", "source": {"type": "url", "url": "x"}}],
        [{"type": "document", "source": {"type": "base64", "data": "x"}}],
        [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {}}]}],
        [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
        [],
    ],
)
def test_what_a_user_cannot_say_is_refused(content: list[Any]) -> None:
    with pytest.raises(RequestError) as refused:
        anthropic_messages([{"role": "user", "content": content}])

    assert refused.value.status == 400


def test_anthropics_tools_have_their_schema_under_one_of_two_names() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    tools = [{"name": "a", "input_schema": schema}, {"name": "b", "parameters": schema}, {"name": "c", "type": "bash"}]
    body = CountBody(messages=[user("q")], tools=tools)  # type: ignore[arg-type,list-item]

    assert [tool["function"]["parameters"] for tool in chat_tools(body)] == [
        schema,
        schema,
        {"type": "object", "properties": {}},
    ]


def test_openais_messages_lose_ids_and_have_arguments_as_objects() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{x"}},
    ]
    body = ChatBody(
        messages=[  # type: ignore[arg-type]
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls},  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ]
    )

    assert [chat_message(message, omit_images=False) for message in body.messages] == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"type": "function", "function": {"name": "f", "arguments": {"_raw_arguments": "{x"}}},
            ],
        },
        {"role": "tool", "content": "r"},
    ]


def test_tools_that_are_no_functions_are_not_offered() -> None:
    body = ChatBody(messages=[{"role": "user", "content": "q"}], tools=[{"type": "web_search"}, {"name": "f"}])  # type: ignore[list-item]

    assert [tool["function"]["name"] for tool in offered_tools(body)] == ["f"]


def test_the_items_of_an_answer_are_one_message_and_those_of_the_next_another() -> None:
    def said(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    items = [thought("a"), said("b"), call, call, thought("c"), call, said("d"), {"role": "user", "content": "q"}]

    messages = item_messages(ResponsesBody(input=items).input, omit_images=False)  # type: ignore[arg-type]

    shown = [
        (message["content"], message.get("reasoning_content"), len(message.get("tool_calls", ())))
        for message in messages
    ]
    assert shown == [("b", "a", 2), ("", "c", 1), ("d", None, 0), ("q", None, 0)]

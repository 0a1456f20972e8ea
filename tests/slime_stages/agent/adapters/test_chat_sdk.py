"""OpenAI's own SDK as the client of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from slime_stages.agent.adapters import BaseAdapter
from tests.slime_stages.agent.adapters.conftest import PARSERS, Served, opened

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
FLAT_SEARCH = {"type": "function", **SEARCH["function"]}  # type: ignore[dict-item]
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "river"}}\n</tool_call>'
SECOND_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "sea"}}\n</tool_call>'
ASKED = [{"role": "user", "content": "Where?"}]


def client_of(served: Served, sid: str = "s") -> openai.AsyncOpenAI:
    return opened(openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=sid))


async def ask(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> dict[str, Any]:
    """The first choice, and the usage."""
    completion = await client.chat.completions.create(model="m", messages=messages, **more)
    assert completion.usage is not None
    usage = {"usage": (completion.usage.prompt_tokens, completion.usage.completion_tokens)}
    return completion.choices[0].to_dict() | usage


async def streamed(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> dict[str, Any]:
    async with client.chat.completions.stream(
        model="m", messages=messages, stream_options={"include_usage": True}, **more
    ) as stream:
        completion = await stream.get_final_completion()
    assert completion.usage is not None
    choice = completion.choices[0].to_dict()
    usage = (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    message = {key: value for key, value in choice["message"].items() if key != "parsed"}  # type: ignore[attr-defined]
    return {**choice, "message": message, "usage": usage}


@pytest.mark.parametrize("way", [ask, streamed])
async def test_an_answer_is_given_and_becomes_a_sample(openai_served: Callable[..., Served], way: Any) -> None:
    served = openai_served(["The sea."])

    choice = await way(client_of(served), [{"role": "developer", "content": "Be short."}, *ASKED], max_tokens=7)

    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "The sea.")
    assert choice["finish_reason"] == "stop"
    [request] = served.engine.requests
    assert served.engine.tokenizer.decode(request["input_ids"]).startswith("<|im_start|>system\nBe short.")
    assert request["sampling_params"]["max_new_tokens"] == 7
    assert choice["usage"] == (len(request["input_ids"]), len(served.engine.ids("The sea.")))
    [sample] = await served.samples()
    assert sample.tokens == request["input_ids"] + served.engine.ids("The sea.")


@pytest.mark.parametrize("tool", [SEARCH, FLAT_SEARCH])
async def test_two_calls_at_once_are_answered_by_their_ids_and_stay_one_sample(
    openai_served: Callable[..., Served], tool: dict[str, Any]
) -> None:
    served = openai_served(["I look." + CALL + SECOND_CALL, "There."], **PARSERS)
    client = client_of(served)

    first = await ask(client, ASKED, tools=[tool])
    calls = first["message"]["tool_calls"]
    assert first["message"]["content"] == "I look."
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"query": "river"}, {"query": "sea"}]
    assert first["finish_reason"] == "tool_calls"
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "found"} for call in calls]
    second = await ask(client, [*ASKED, first["message"], *results], tools=[tool])

    assert second["message"]["content"] == "There."
    [sample] = await served.samples()
    assert served.said(sample) == "I look." + CALL + SECOND_CALL + "<|im_end|>" + "There.<|im_end|>"


async def test_streamed_calls_are_the_whole_ones(openai_served: Callable[..., Served]) -> None:
    served = openai_served([CALL + SECOND_CALL], **PARSERS)

    strict = {**SEARCH, "function": {**SEARCH["function"], "strict": True}}  # some clients' helper takes no other
    choice = await streamed(client_of(served), ASKED, tools=[strict])

    assert choice["finish_reason"] == "tool_calls"
    assert [json.loads(call["function"]["arguments"])["query"] for call in choice["message"]["tool_calls"]] == [
        "river",
        "sea",
    ]


async def test_the_chunks_of_a_stream_come_in_their_order(openai_served: Callable[..., Served]) -> None:
    served = openai_served(["<think>\nhm\n</think>\n\nI look." + CALL], **PARSERS)

    stream = await client_of(served).chat.completions.create(model="m", messages=ASKED, tools=[SEARCH], stream=True)  # type: ignore[call-overload]
    chunks = [chunk async for chunk in stream]

    deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks]
    assert [sorted(delta) for delta in deltas] == [
        ["content", "role"],
        ["reasoning_content"],
        ["content"],
        ["tool_calls"],
        [],
    ]
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].usage.completion_tokens > 0) == ("tool_calls", True)


async def test_reasoning_is_told_apart_and_may_be_left_out_of_the_history(openai_served: Callable[..., Served]) -> None:
    served = openai_served(["<think>\nhm\n</think>\n\nThe sea.", "Yes.", "No."], **PARSERS)
    client = client_of(served)

    first = await ask(client, ASKED)
    assert (first["message"]["content"], first["message"]["reasoning_content"]) == ("The sea.", "hm")
    bare = {"role": "assistant", "content": "The sea."}
    await ask(client, [*ASKED, bare, {"role": "user", "content": "Sure?"}])
    await ask(client, [*ASKED, first["message"], {"role": "user", "content": "Really?"}])

    shared, other = await served.samples()
    assert "hm" not in served.said(shared)  # the template left it out: it was replaced
    assert served.said(other) == "No.<|im_end|>"


async def test_arguments_that_are_no_json_come_back_as_they_were(openai_served: Callable[..., Served]) -> None:
    broken = '<tool_call>\n{"name": "search", "arguments": "river"}\n</tool_call>'
    served = openai_served([broken, "There."], **PARSERS)
    client = client_of(served)

    first = await ask(client, ASKED, tools=[SEARCH])
    [call] = first["message"]["tool_calls"]
    assert call["function"]["arguments"] == '"river"'
    result = {"role": "tool", "tool_call_id": call["id"], "content": "what?"}
    await ask(client, [*ASKED, first["message"], result], tools=[SEARCH])

    [sample] = await served.samples()
    assert sample.metadata["ill_formed"] is True


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"n": 2}, "n: Input should be less than or equal to 1"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"tools": [{"type": "function"}]}, "tools: a function has no name"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "the model is sent no content of type image_url",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_place(
    openai_served: Callable[..., Served], more: dict[str, Any], words: str
) -> None:
    served = openai_served()

    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client_of(served), more.pop("messages", ASKED), tools=more.pop("tools", [SEARCH]), **more)

    assert isinstance(refused.value.body, dict)
    assert words in refused.value.body["message"]
    assert refused.value.body["type"] == "invalid_request_error"
    assert served.engine.requests == []


async def test_a_tool_that_is_switched_off_is_not_offered(openai_served: Callable[..., Served]) -> None:
    served = openai_served([CALL], **PARSERS)

    choice = await ask(client_of(served), ASKED, tools=[SEARCH], tool_choice="none")

    assert choice["message"]["content"] == CALL
    assert "# Tools" not in served.engine.tokenizer.decode(served.engine.requests[0]["input_ids"])


@pytest.mark.parametrize(
    ("headers", "body", "sid"),
    [
        ({"Authorization": "Bearer a"}, {"user": "b"}, "a"),
        ({}, {"metadata": {"session_id": "b"}, "user": "c"}, "b"),
        ({"Authorization": "Basic x"}, {"metadata": {"session_id": ""}, "user": "c"}, "c"),
        ({}, {"metadata": "b", "user": 7}, "default"),
    ],
)
def test_a_session_is_named_by_the_key_then_by_the_metadata_then_by_the_user(
    headers: dict[str, str], body: dict[str, Any], sid: str, tokenizer: Any
) -> None:
    from slime_stages.agent.adapters import OpenAIAdapter

    adapter: BaseAdapter = OpenAIAdapter(tokenizer, "http://127.0.0.1:9")

    assert [endpoint.session_id(headers, body) for endpoint in adapter.endpoints()] == [sid, sid]

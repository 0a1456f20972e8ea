"""Anthropic's own SDK as the client: whole and streamed answers, tools, thinking, counts and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from slime_stages.sample import Status
from tests.slime_stages.agent.adapters.conftest import PARSERS, Served, opened

SEARCH = {
    "name": "search",
    "description": "Look it up.",
    "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "river"}}\n</tool_call>'
SECOND_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "sea"}}\n</tool_call>'
ASKED = [{"role": "user", "content": "Where?"}]


def client_of(served: Served, sid: str = "s") -> anthropic.AsyncAnthropic:
    return opened(anthropic.AsyncAnthropic(base_url=served.url, auth_token=sid, api_key=None))


async def ask(client: anthropic.AsyncAnthropic, messages: list[Any], **more: Any) -> anthropic.types.Message:
    options = {"model": "m", "max_tokens": 64, **more}
    return await client.messages.create(messages=messages, **options)


async def streamed(client: anthropic.AsyncAnthropic, messages: list[Any], **more: Any) -> anthropic.types.Message:
    options = {"model": "m", "max_tokens": 64, **more}
    async with client.messages.stream(messages=messages, **options) as stream:
        return await stream.get_final_message()


async def test_an_answer_is_given_and_becomes_a_sample(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["The sea."])

    message = await ask(client_of(served), ASKED, system="Be short.")

    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "The sea."}]
    assert (message.role, message.model, message.stop_reason, message.id[:4]) == ("assistant", "m", "end_turn", "msg_")
    [request] = served.engine.requests
    rendered = served.engine.tokenizer.decode(request["input_ids"])
    assert rendered == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert request["routing_key"] == "s"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (
        len(request["input_ids"]),
        len(served.engine.ids("The sea.")),
    )
    [sample] = await served.samples(reward=0.5)
    assert sample.tokens == request["input_ids"] + served.engine.ids("The sea.")
    assert sample.rollout_log_probs == [-(n + 1) / 100 for n in range(sample.response_length)]
    assert (sample.response, sample.reward, sample.status) == ("The sea.<|im_end|>", 0.5, Status.COMPLETED)
    assert sample.weight_versions == ["3"]


@pytest.mark.parametrize("way", [ask, streamed])
async def test_two_calls_at_once_are_answered_by_their_ids_and_stay_one_sample(
    anthropic_served: Callable[..., Served], way: Any
) -> None:
    served = anthropic_served(["I look." + CALL + SECOND_CALL, "There."], **PARSERS)
    client = client_of(served)

    first = await way(client, ASKED, tools=[SEARCH])
    text, *calls = first.content
    assert text.text == "I look."
    assert [(call.name, call.input) for call in calls] == [("search", {"query": "river"}), ("search", {"query": "sea"})]
    assert first.stop_reason == "tool_use"
    assert len({call.id for call in calls}) == 2
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "found"} for call in calls]
    second = await way(
        client,
        [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}],
        tools=[SEARCH],
    )

    assert second.content[0].text == "There."
    [sample] = await served.samples()
    assert served.said(sample) == "I look." + CALL + SECOND_CALL + "<|im_end|>" + "There.<|im_end|>"
    assert sample.metadata["use_tool"] is True
    assert sample.tokens == served.engine.requests[1]["input_ids"] + served.engine.ids("There.")


@pytest.mark.parametrize("way", [ask, streamed])
async def test_thinking_is_a_block_of_its_own(anthropic_served: Callable[..., Served], way: Any) -> None:
    served = anthropic_served(["<think>\nhm\n</think>\n\nThe sea."], **PARSERS)

    message = await way(client_of(served), ASKED)

    assert [(block.type, getattr(block, block.type)) for block in message.content] == [
        ("thinking", "hm"),
        ("text", "The sea."),
    ]


async def test_an_answer_of_nothing_is_an_empty_text(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served([""])

    message = await streamed(client_of(served), ASKED)

    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": ""}]


async def test_the_events_of_a_stream_come_in_their_order(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["I look." + CALL], **PARSERS)

    stream = await client_of(served).messages.create(
        model="m", max_tokens=64, messages=ASKED, tools=[SEARCH], stream=True
    )
    events = [event async for event in stream]

    assert [event.type for event in events] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert [event.delta.type for event in events if event.type == "content_block_delta"] == [
        "text_delta",
        "input_json_delta",
    ]


async def test_the_count_of_tokens_is_that_of_the_prompt(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["The sea."])
    client = client_of(served)

    counted = await client.messages.count_tokens(model="m", messages=ASKED, system="Be short.", tools=[SEARCH])
    message = await ask(client, ASKED, system="Be short.", tools=[SEARCH])

    assert counted.input_tokens == message.usage.input_tokens == len(served.engine.requests[0]["input_ids"])


async def test_an_answer_that_was_cut_says_so(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["The sea and"])
    served.engine.finish = "length"

    message = await ask(client_of(served), ASKED)

    assert (message.content[0].text, message.stop_reason) == ("The sea and", "max_tokens")
    [sample] = await served.samples()
    assert (sample.status, sample.metadata["truncated"]) == (Status.TRUNCATED, True)


async def test_errors_are_the_protocols_own(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["a"], max_turns_per_sid=1)
    client = client_of(served)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}

    with pytest.raises(anthropic.BadRequestError, match="the model is sent no images") as refused:
        await ask(client_of(served, "other"), [{"role": "user", "content": [image]}])
    assert refused.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": refused.value.body["error"]["message"]},  # type: ignore[index,call-overload]
    }
    await ask(client, ASKED)
    with pytest.raises(anthropic.RateLimitError, match="has had its 1 turns") as capped:
        await ask(client, ASKED)
    assert capped.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index,call-overload]
    await served.samples()
    with pytest.raises(anthropic.InternalServerError, match="session closed") as closed:
        await ask(client, ASKED)
    assert closed.value.status_code == 503
    assert len(served.engine.requests) == 1


async def test_an_image_can_be_left_out_if_that_is_asked_for(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["A cat."], omit_images=True)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}

    await ask(client_of(served), [{"role": "user", "content": [image, {"type": "text", "text": "Who?"}]}])

    assert "[image omitted]" in served.engine.tokenizer.decode(served.engine.requests[0]["input_ids"])

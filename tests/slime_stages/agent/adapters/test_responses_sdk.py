"""OpenAI's own SDK as the client of Responses, and its Agents SDK over both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import agents
import openai
import pytest

from tests.slime_stages.agent.adapters.conftest import PARSERS, Served
from tests.slime_stages.agent.adapters.test_chat_sdk import CALL, FLAT_SEARCH, SECOND_CALL, client_of

RIVER_CALL = CALL


async def ask(client: openai.AsyncOpenAI, asked: Any, **more: Any) -> Any:
    return await client.responses.create(model="m", input=asked, **more)


async def streamed(client: openai.AsyncOpenAI, asked: Any, **more: Any) -> Any:
    async with client.responses.stream(model="m", input=asked, **more) as stream:
        return await stream.get_final_response()


@pytest.mark.parametrize("way", [ask, streamed])
async def test_an_answer_is_given_and_becomes_a_sample(openai_served: Callable[..., Served], way: Any) -> None:
    served = openai_served(["The sea."])

    response = await way(client_of(served), "Where?", instructions="Be short.", max_output_tokens=9)

    assert (response.output_text, response.status, response.instructions) == ("The sea.", "completed", "Be short.")
    [request] = served.engine.requests
    assert served.engine.tokenizer.decode(request["input_ids"]).startswith("<|im_start|>system\nBe short.")
    assert request["sampling_params"]["max_new_tokens"] == 9
    assert response.usage.input_tokens == len(request["input_ids"])
    [sample] = await served.samples()
    assert sample.tokens == request["input_ids"] + served.engine.ids("The sea.")


@pytest.mark.parametrize("way", [ask, streamed])
@pytest.mark.parametrize("is_stateful", [True, False])
async def test_calls_are_answered_by_their_ids_with_or_without_the_servers_memory(
    openai_served: Callable[..., Served], way: Any, is_stateful: bool
) -> None:
    served = openai_served(["I look." + CALL + SECOND_CALL, "There."], **PARSERS)
    client = client_of(served)
    asked = [{"role": "user", "content": "Where?"}]

    first = await way(client, asked, tools=[FLAT_SEARCH], instructions="Search.")
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["query"] for call in calls] == ["river", "sea"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "found"} for call in calls]
    history: dict[str, Any] = {"asked": results, "previous_response_id": first.id}
    if not is_stateful:
        history = {"asked": [*asked, *(item.to_dict() for item in first.output), *results]}
    second = await way(client, history.pop("asked"), tools=[FLAT_SEARCH], instructions="Search.", **history)

    assert second.output_text == "There."
    [sample] = await served.samples()
    assert served.said(sample) == "I look." + CALL + SECOND_CALL + "<|im_end|>" + "There.<|im_end|>"


async def test_the_events_of_a_stream_come_in_their_order_and_are_numbered(
    openai_served: Callable[..., Served],
) -> None:
    served = openai_served(["<think>\nhm\n</think>\n\nI look." + CALL], **PARSERS)

    stream = await ask(client_of(served), "Where?", tools=[FLAT_SEARCH], stream=True)
    events = [event async for event in stream]

    def part(kind: str) -> list[str]:
        return ["content_part.added", f"{kind}.delta", f"{kind}.done", "content_part.done"]

    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *["output_item.added", *part("reasoning_text"), "output_item.done"],
        *["output_item.added", *part("output_text"), "output_item.done"],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2]


async def test_reasoning_comes_back_open_or_sealed(openai_served: Callable[..., Served]) -> None:
    thought = "<think>\nhm\n</think>\n\nThe sea."
    served = openai_served([thought, "Yes."], **PARSERS)
    client = client_of(served)

    first = await ask(client, "Where?", include=["reasoning.encrypted_content"], store=False)

    reasoning, message = first.output
    assert (reasoning.content[0].text, message.content[0].text) == ("hm", "The sea.")
    sealed = {key: value for key, value in reasoning.to_dict().items() if key != "content"}
    asked = {"role": "user", "content": "Where?"}
    await ask(client, [asked, sealed, message.to_dict(), {"role": "user", "content": "Sure?"}])
    assert len(await served.samples()) == 1


async def test_an_answer_that_was_cut_says_so(openai_served: Callable[..., Served]) -> None:
    served = openai_served(["The sea and", "The sea and"])
    served.engine.finish = "length"

    response = await ask(client_of(served), "Where?")
    events = [event async for event in await ask(client_of(served), "Where?", stream=True)]

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (events[-1].type, events[-1].response.output_text) == ("response.incomplete", "The sea and")


@pytest.mark.parametrize(
    ("asked", "more", "status", "words"),
    [
        ("a", {"previous_response_id": "resp_0"}, 404, "there is no resp_0 in this session"),
        ("", {}, 400, "there is nothing to answer"),
        ([{"type": "item_reference", "id": "x"}], {}, 400, "input"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}], {}, 400, "input_image"),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "!"}], {}, 400, "not of this adapter"),
        ("a", {"background": True}, 400, "background"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_place(
    openai_served: Callable[..., Served], asked: Any, more: dict[str, Any], status: int, words: str
) -> None:
    served = openai_served()

    with pytest.raises(openai.APIStatusError, match=words) as refused:
        await ask(client_of(served), asked, **more)

    assert refused.value.status_code == status


async def test_a_response_that_was_not_to_be_stored_cannot_be_gone_on_from(
    openai_served: Callable[..., Served],
) -> None:
    served = openai_served(["a"])
    client = client_of(served)

    first = await ask(client, "Where?", store=False)

    with pytest.raises(openai.NotFoundError):
        await ask(client, "Sure?", previous_response_id=first.id)


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_agent_of_the_agents_sdk_runs_its_tools_to_the_end(
    openai_served: Callable[..., Served], kind: str, is_streamed: bool
) -> None:
    served = openai_served([RIVER_CALL + SECOND_CALL, "Between the two."], **PARSERS)
    models: dict[str, Any] = {
        "chat": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }
    agents.set_tracing_disabled(True)
    looked_up = []

    @agents.function_tool
    def search(query: str) -> str:
        """Look it up."""
        looked_up.append(query)
        return f"the {query}"

    model = models[kind](model="m", openai_client=client_of(served))
    agent = agents.Agent(name="guide", instructions="Search.", model=model, tools=[search])
    if is_streamed:
        result: Any = agents.Runner.run_streamed(agent, "Where?")
        async for _ in result.stream_events():
            pass
    else:
        result = await agents.Runner.run(agent, "Where?")

    assert result.final_output == "Between the two."
    assert sorted(looked_up) == ["river", "sea"]
    [sample] = await served.samples()
    assert served.said(sample) == RIVER_CALL + SECOND_CALL + "<|im_end|>" + "Between the two.<|im_end|>"

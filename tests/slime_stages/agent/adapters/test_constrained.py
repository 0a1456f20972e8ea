"""Answers that a client holds to a form: calls that have to be made, and JSON; by the vendors' SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.slime_stages.agent.adapters import test_anthropic_sdk as claude
from tests.slime_stages.agent.adapters.conftest import PARSERS, Served
from tests.slime_stages.agent.adapters.test_chat_sdk import ASKED, CALL, FLAT_SEARCH, SEARCH, ask, client_of, streamed

STOP = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "search"}}
ALLOWED = {"mode": "required", "tools": [NAMED]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}


class Place(BaseModel):
    where: Literal["sea", "river"]


def strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Some versions of the client's helper for streams take no other."""
    return {**tool, "function": {**tool["function"], "strict": True}}


def asked_form(served: Served) -> dict[str, Any]:
    """The grammar that the engine was sent last."""
    params = served.engine.requests[-1]["sampling_params"]
    [grammar] = [params[name] for name in ("structural_tag", "json_schema") if name in params]
    return dict(json.loads(grammar))


def callable_names(form: dict[str, Any]) -> list[str]:
    return [json.loads(tag["begin"].removeprefix("<tool_call>\n") + "0}")["name"] for tag in form["format"]["tags"]]


@pytest.mark.parametrize("way", [ask, streamed])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["search", "stop"]),
        (NAMED, ["search"]),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, ["search"]),
    ],
)
async def test_a_call_that_has_to_be_made_is_held_to_the_format_of_the_parser(
    openai_served: Callable[..., Served], way: Any, choice: Any, names: list[str]
) -> None:
    served = openai_served([CALL], **PARSERS)

    answer = await way(client_of(served), ASKED, tools=[strict(SEARCH), strict(STOP)], tool_choice=choice)

    assert answer["message"]["tool_calls"][0]["function"]["name"] == "search"
    form = asked_form(served)
    assert callable_names(form) == names
    assert (form["format"]["at_least_one"], form["format"]["stop_after_first"]) == (True, False)
    assert '"stop"' in served.engine.tokenizer.decode(served.engine.requests[0]["input_ids"])  # prompts stay alike
    assert served.engine.requests[0]["require_reasoning"] is True


async def test_arguments_are_any_object_unless_the_tool_is_strict(openai_served: Callable[..., Served]) -> None:
    served = openai_served([CALL, CALL], **PARSERS)

    held = []
    for tool in (SEARCH, strict(SEARCH)):
        await ask(client_of(served), ASKED, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        [tag] = asked_form(served)["format"]["tags"]
        held.append(tag["content"]["json_schema"])

    assert held == [{"type": "object"}, SEARCH["function"]["parameters"]]  # type: ignore[index]
    assert asked_form(served)["format"]["stop_after_first"] is True


async def test_without_a_parser_calls_are_a_json_array(openai_served: Callable[..., Served]) -> None:
    calls = [{"name": "search", "parameters": {"query": word}} for word in ("sea", "river")]
    served = openai_served([json.dumps(calls), '[{"name": "search"'])

    whole = await ask(client_of(served), ASKED, tools=[SEARCH], tool_choice="required")
    cut = await ask(client_of(served), ASKED, tools=[SEARCH], tool_choice="required")

    made = [call["function"] for call in whole["message"]["tool_calls"]]
    assert [json.loads(call["arguments"]) for call in made] == [{"query": "sea"}, {"query": "river"}]
    assert cut["message"]["content"] == '[{"name": "search"'
    assert (asked_form(served)["type"], asked_form(served)["minItems"]) == ("array", 1)


@pytest.mark.parametrize(("kind", "name"), [("any", ""), ("tool", "search")])
async def test_a_tool_that_claude_code_has_to_use(
    anthropic_served: Callable[..., Served], kind: str, name: str
) -> None:
    served = anthropic_served([claude.CALL], **PARSERS)
    choice: dict[str, Any] = {"type": kind, "disable_parallel_tool_use": True} | ({"name": name} if name else {})
    other = {"name": "stop", "input_schema": {"type": "object"}}

    message = await claude.ask(claude.client_of(served), ASKED, tools=[claude.SEARCH, other], tool_choice=choice)

    assert message.stop_reason == "tool_use"
    assert callable_names(asked_form(served)) == (["search"] if name else ["search", "stop"])
    assert asked_form(served)["format"]["stop_after_first"] is True


async def test_sdks_parse_what_is_held_to_their_schema(
    openai_served: Callable[..., Served], anthropic_served: Callable[..., Served]
) -> None:
    openais, anthropics = openai_served(['{"where": "sea"}'] * 2), anthropic_served(['{"where": "sea"}'])
    client, messages = client_of(openais), claude.client_of(anthropics).messages

    chat = await client.chat.completions.parse(model="m", messages=ASKED, response_format=Place)  # type: ignore[arg-type]
    response = await client.responses.parse(model="m", input="Where?", text_format=Place)
    message = await messages.parse(model="m", max_tokens=64, messages=ASKED, output_format=Place)  # type: ignore[arg-type]

    assert chat.choices[0].message.parsed == response.output_parsed == message.parsed_output == Place(where="sea")
    assert all(
        asked_form(served)["properties"]["where"]["enum"] == ["sea", "river"] for served in (openais, anthropics)
    )
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


async def test_any_object_will_do(openai_served: Callable[..., Served]) -> None:
    served = openai_served(["{}"])

    await ask(client_of(served), ASKED, response_format={"type": "json_object"})

    assert asked_form(served) == {"type": "object"}


async def test_with_tools_an_answer_is_calls_or_json(openai_served: Callable[..., Served]) -> None:
    served = openai_served([CALL, '{"where": "sea"}'], **PARSERS)
    form: Any = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    client = client_of(served)

    first = await client.responses.create(model="m", input="Where?", tools=[FLAT_SEARCH], text=form)  # type: ignore[list-item]
    second = await client.responses.create(model="m", input="Where?", tools=[FLAT_SEARCH], text=form)  # type: ignore[list-item]

    assert (first.output[0].type, second.output_text) == ("function_call", '{"where": "sea"}')
    text, calls = asked_form(served)["format"]["elements"]
    assert (text["json_schema"], calls["type"]) == (SCHEMA, "triggered_tags")


async def test_of_the_tools_that_are_allowed_the_model_is_shown_those_alone(
    openai_served: Callable[..., Served],
) -> None:
    served = openai_served(["No."], **PARSERS)
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}

    await ask(client_of(served), ASKED, tools=[SEARCH, STOP], tool_choice=allowed)

    rendered = served.engine.tokenizer.decode(served.engine.requests[0]["input_ids"])
    assert ('"search"' in rendered, '"stop"' in rendered) == (True, False)
    assert "structural_tag" not in served.engine.requests[0]["sampling_params"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "a call of fly is required"),
        ({"tool_choice": "required", "tools": []}, "a call of one is required"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format: a call is required",
        ),
        ({"tool_choice": {"type": "custom", "custom": {"name": "search"}}}, "type: Input should be 'function'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "has no schema"),
        ({"response_format": {"type": "json_object"}}, "no form of calls that stands beside JSON"),
    ],
)
async def test_what_no_grammar_holds_is_refused(
    openai_served: Callable[..., Served], more: dict[str, Any], words: str
) -> None:
    served = openai_served()

    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client_of(served), ASKED, tools=more.pop("tools", [SEARCH]), **more)

    assert isinstance(refused.value.body, dict)
    assert words in refused.value.body["message"]
    assert served.engine.requests == []


async def test_a_tool_that_is_not_there_cannot_be_used(anthropic_served: Callable[..., Served]) -> None:
    client = claude.client_of(anthropic_served())

    with pytest.raises(anthropic.BadRequestError, match="a call of fly is required"):
        await claude.ask(client, ASKED, tools=[claude.SEARCH], tool_choice={"type": "tool", "name": "fly"})


async def test_a_token_that_the_grammar_left_alone_is_not_trained_on(openai_served: Callable[..., Served]) -> None:
    served = openai_served(["{}", "Yes."])
    served.engine.log_probs = [0.0, -0.5, 0.0]
    client = client_of(served)

    first = await ask(client, ASKED, response_format={"type": "json_object"})
    served.engine.log_probs = []
    await ask(client, [*ASKED, first["message"], {"role": "user", "content": "Sure?"}])

    [sample] = await served.samples()
    assert sample.loss_mask is not None
    length = len(served.engine.ids("{}"))
    assert sample.loss_mask[:length] == [0, 1, 0][:length]
    assert set(sample.loss_mask[-len(served.engine.ids("Yes.")) :]) == {1}
    assert sample.metadata["constrained"] is True

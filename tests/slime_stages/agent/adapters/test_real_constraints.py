"""Constrained answers of a real SGLang server: they keep their form, and say which tokens the model chose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import agents
import anthropic
import openai
import pytest

from slime_stages.agent.adapters import AnthropicAdapter, OpenAIAdapter
from slime_stages.sample import Sample
from slime_stages.serving.client import EngineClient
from slime_stages.serving.engine import Engine
from tests.fixtures.tiny_model import VOCABULARY_SIZE
from tests.slime_stages.agent.adapters.conftest import opened
from tests.slime_stages.agent.adapters.test_real_engine import MODEL, check, served

WHERE = {"type": "object", "properties": {"where": {"enum": ["sea", "river"]}}, "required": ["where"]}
CLOSED = {**WHERE, "additionalProperties": False}
LOOK: Any = {"name": "look", "strict": True, "parameters": CLOSED}
SAMPLING = {"temperature": 1.0, "max_new_tokens": 600, "sampling_seed": 3}
ASKED: Any = [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize("parser", ["qwen25", "qwen3_coder", "hermes", "llama3", "pythonic", None])
async def test_a_call_is_made_in_the_format_of_any_parser(
    tiny_engine: Engine, tiny_model: Path, parser: str | None
) -> None:
    with served(OpenAIAdapter, tiny_engine, tiny_model, tool_parser=parser, reasoning_parser=None) as (adapter, url):
        adapter.open_session("s", sampling_defaults=SAMPLING)
        client = opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s"))
        tool: Any = {"type": "function", "function": LOOK}
        forced: Any = {"tool_choice": "required", "tools": [tool], "parallel_tool_calls": False}

        completion = await client.chat.completions.create(**MODEL, messages=ASKED, **forced)

        [choice] = completion.choices
        [call] = choice.message.tool_calls or []
        assert call.type == "function"
        assert json.loads(call.function.arguments)["where"].strip() in ("sea", "river"), choice
        [sample] = await adapter.finish_session("s", base_sample=Sample(index=0))
        await check_choices(tiny_engine, sample)


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_agent_of_the_agents_sdk_works_its_way_to_an_answer(
    tiny_engine: Engine, tiny_model: Path, kind: Any, is_streamed: bool
) -> None:
    agents.set_tracing_disabled(True)
    looked_at = []

    @agents.function_tool
    def look(where: Literal["sea", "river"]) -> str:
        """Look there."""
        looked_at.append(where)
        return f"the {where}"

    with served(OpenAIAdapter, tiny_engine, tiny_model, reasoning_parser=None) as (adapter, url):
        adapter.open_session("s", sampling_defaults={**SAMPLING, "max_new_tokens": 200})
        model = kind(model="slime-actor", openai_client=opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s")))
        # Of its first turn only. By Chat Completions it does not say that its tools are strict.
        choice = "required" if kind is agents.OpenAIResponsesModel else "auto"
        settings = agents.ModelSettings(tool_choice=choice, parallel_tool_calls=False)
        agent = agents.Agent(name="guide", instructions="Look.", model=model, tools=[look], model_settings=settings)
        if is_streamed:
            result: Any = agents.Runner.run_streamed(agent, "Where?", max_turns=2)
            assert [event async for event in result.stream_events()]
        else:
            result = await agents.Runner.run(agent, "Where?", max_turns=2)
        samples = await adapter.finish_session("s", base_sample=Sample(index=0))

    assert isinstance(result.final_output, str)
    assert len(looked_at) == (1 if choice == "required" else 0)
    [sample] = samples  # both turns
    assert sample.metadata.get("constrained", False) == (choice == "required")
    await (check_choices(tiny_engine, sample) if looked_at else check(tiny_engine, samples))


async def test_json_keeps_its_schema_by_both_vendors(tiny_engine: Engine, tiny_model: Path) -> None:
    form: Any = {"type": "json_schema", "schema": CLOSED}
    with served(OpenAIAdapter, tiny_engine, tiny_model) as (adapter, url):
        adapter.open_session("s", sampling_defaults=SAMPLING)
        openais = opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s"))
        response = await openais.responses.create(**MODEL, input="Where?", text={"format": {**form, "name": "where"}})
        [sample] = await adapter.finish_session("s", base_sample=Sample(index=0))
    with served(AnthropicAdapter, tiny_engine, tiny_model) as (adapter, url):
        adapter.open_session("s", sampling_defaults=SAMPLING)
        claudes = opened(anthropic.AsyncAnthropic(base_url=url, auth_token="s", api_key=None))
        message = await claudes.messages.create(**MODEL, max_tokens=120, messages=ASKED, output_config={"format": form})

    assert json.loads(response.output_text)["where"] in ("sea", "river")
    assert json.loads(message.content[0].text)["where"] in ("sea", "river")  # type: ignore[union-attr]
    await check_choices(tiny_engine, sample)


async def test_beside_tools_an_answer_is_json_or_a_call(tiny_engine: Engine, tiny_model: Path) -> None:
    with served(OpenAIAdapter, tiny_engine, tiny_model, reasoning_parser=None) as (adapter, url):
        client = opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s"))
        form: Any = {"format": {"type": "json_schema", "name": "where", "schema": CLOSED}}
        adapter.open_session("s", sampling_defaults=SAMPLING)

        response = await client.responses.create(
            **MODEL, input="Where?", text=form, tools=[{"type": "function", **LOOK}]
        )

        [item] = response.output
        written = item.arguments if item.type == "function_call" else response.output_text
        assert json.loads(written)["where"] in ("sea", "river")


async def test_a_schema_that_the_engine_does_not_take_is_refused(tiny_engine: Engine, tiny_model: Path) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}
    with served(OpenAIAdapter, tiny_engine, tiny_model, "s") as (_, url):
        client = opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s"))

        with pytest.raises(openai.BadRequestError, match="nonsense"):
            await client.chat.completions.create(**MODEL, messages=ASKED, response_format=form)


async def check_choices(engine: Engine, sample: Sample) -> None:
    """A token's log-prob is what the model gives it among what was allowed: never less than among all tokens."""
    assert sample.loss_mask is not None
    assert sample.rollout_log_probs is not None
    assert {0, 1} == {*sample.loss_mask}
    async with EngineClient(engine.url, vocab_size=VOCABULARY_SIZE) as client:
        extra = {"logprob_start_len": 0}
        output = await client.generate(sample.tokens, {"max_new_tokens": 1}, rid=f"check-{id(sample)}", extra=extra)
    free = [pair[0] for pair in output.meta_info["input_token_logprobs"]][sample.prompt_length :]
    for mask, held, among_all in zip(sample.loss_mask, sample.rollout_log_probs, free, strict=True):
        assert held >= among_all - 1e-3
        assert mask == (held != 0.0)

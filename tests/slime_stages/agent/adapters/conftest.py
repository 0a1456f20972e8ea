"""Adapters in front of a scripted engine, each with a session that is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from slime_stages.agent.adapters import AnthropicAdapter, BaseAdapter, OpenAIAdapter, run_app_in_thread
from slime_stages.sample import Sample
from tests.fixtures.tiny_model import make_tokenizer
from tests.slime_stages.agent.adapters.scripted_engine import ScriptedEngine, serving

PARSERS = {"tool_parser": "qwen25", "reasoning_parser": "qwen3"}


@dataclass
class Served:
    """An adapter at work."""

    adapter: BaseAdapter
    engine: ScriptedEngine
    url: str

    async def samples(self, sid: str = "s", **options: Any) -> list[Sample]:
        options.setdefault("base_sample", Sample(index=1, group_index=0))
        return await self.adapter.finish_session(sid, **options)

    def said(self, sample: Sample) -> str:
        """The text of the tokens that are trained on."""
        assert sample.loss_mask is not None
        response = sample.tokens[sample.prompt_length :]
        trained = [token for token, mask in zip(response, sample.loss_mask, strict=True) if mask]
        return str(self.engine.tokenizer.decode(trained, skip_special_tokens=False))


Serve = Callable[..., Served]
Client = TypeVar("Client")
_opened: list[Any] = []


def opened(client: Client) -> Client:
    """A vendor's client, which is closed after the test."""
    _opened.append(client)
    return client


@pytest.fixture(autouse=True)
async def _close_clients() -> AsyncIterator[None]:
    yield
    while _opened:
        await _opened.pop().close()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def serve(tokenizer: Any) -> Iterator[Serve]:
    """`serve(kind, script, **settings)`: an adapter, with session `s` open."""
    with ExitStack() as stack:

        def start(
            kind: type[BaseAdapter], script: Any = (), *, session: dict[str, Any] | None = None, **settings: Any
        ) -> Served:
            script = script if callable(script) else list(script)
            engine = stack.enter_context(serving(ScriptedEngine(tokenizer, script)))
            adapter = kind(tokenizer, engine.url, **settings)
            running = stack.enter_context(run_app_in_thread(adapter.app))
            adapter.open_session("s", **(session or {}))
            return Served(adapter, engine, running.url)

        yield start


@pytest.fixture
def anthropic_served(serve: Serve) -> Callable[..., Served]:
    return lambda script=(), **settings: serve(AnthropicAdapter, script, **settings)


@pytest.fixture
def openai_served(serve: Serve) -> Callable[..., Served]:
    return lambda script=(), **settings: serve(OpenAIAdapter, script, **settings)

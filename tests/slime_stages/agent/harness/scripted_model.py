"""An adapter whose engine answers with what a test has written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slime_stages.agent.adapters import BaseAdapter, run_app_in_thread
from slime_stages.sample import Sample
from tests.fixtures.tiny_model import make_tokenizer
from tests.slime_stages.agent.adapters.scripted_engine import ScriptedEngine, serving

SESSION = "session-1"


@dataclass
class Model:
    """An adapter with one open session."""

    adapter: BaseAdapter
    url: str

    async def samples(self) -> list[Sample]:
        return await self.adapter.finish_session(SESSION, base_sample=Sample(index=1, group_index=0), reward=1.0)


def call(name: str, **arguments: Any) -> str:
    """What a model of the Qwen family writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextmanager
def saying(
    kind: type[BaseAdapter], script: Sequence[str] | Callable[[dict[str, Any]], str], **settings: Any
) -> Iterator[Model]:
    tokenizer = make_tokenizer()
    script = script if callable(script) else list(script)
    with serving(ScriptedEngine(tokenizer, script)) as engine:
        adapter = kind(tokenizer, engine.url, tool_parser="qwen25", known_sessions_only=True, **settings)
        with run_app_in_thread(adapter.app) as running:
            adapter.open_session(SESSION)
            yield Model(adapter, running.url)

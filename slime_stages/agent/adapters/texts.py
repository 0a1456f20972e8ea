"""Between messages and token ids: rendering histories, and reading answers, one at a time in a thread of their own."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from slime_stages.agent.adapters.errors import invalid
from slime_stages.agent.adapters.turn import Constraint, Question, Reply, WireCall
from slime_stages.agent.parsing import END_OF_REASONING, AnswerParser, constraints
from slime_stages.agent.trajectory import TurnRecord

T = TypeVar("T")
CLOSED_THINKING_TOKENS = 8
"""Templates that have a model not think close its thinking in the last few tokens of the prompt."""


class Texts:
    """A tokenizer with its chat template, and the parsers of what its model writes."""

    def __init__(self, tokenizer: Any, parser: AnswerParser, template_kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._template_kwargs = dict(template_kwargs)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapter-texts")  # tokenizers do not take two

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that a text can have."""
        return int(max(self._tokenizer.get_vocab().values())) + 1

    async def render(self, question: Question) -> list[int]:
        """The token ids of a history. RequestError if the model's chat template does not take it."""
        return await self._run(lambda: self._render(question))

    async def constraint(self, question: Question, prompt_ids: Sequence[int]) -> Constraint:
        """What the answer is held to. RequestError if the model's format of calls cannot be."""
        if not question.forced_tools and question.json_schema is None:
            return Constraint()
        return await self._run(lambda: self._constraint(question, prompt_ids))

    async def read(self, record: TurnRecord, question: Question, call_prefix: str) -> tuple[Reply, TurnRecord]:
        """What an answer says, and the record with whether it could be read."""
        return await self._run(lambda: self._read(record, question, call_prefix))

    async def decode(self, ids: list[list[int]]) -> list[str]:
        return await self._run(lambda: [self._decode(item) for item in ids])

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _render(self, question: Question) -> list[int]:
        try:
            ids = self._tokenizer.apply_chat_template(
                question.messages,
                tools=question.tools or None,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **self._template_kwargs,
            )
        except Exception as error:  # templates raise what they like
            raise invalid(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
        return list(ids)

    def _constraint(self, question: Question, prompt_ids: Sequence[int]) -> Constraint:
        parser, forced, schema = self._parser.tool_parser, question.forced_tools, question.json_schema or {}
        single = question.is_single_call
        ending = self._decode(list(prompt_ids[-CLOSED_THINKING_TOKENS:])).rstrip()
        is_thinking = self._parser.reasoning_parser is not None and not ending.endswith(END_OF_REASONING)
        try:
            if forced:
                params = constraints.call_constraint(parser, forced, is_single=single, is_thinking=is_thinking)
            elif question.tools:
                params = constraints.call_or_schema_constraint(parser, question.tools, schema, is_single=single)
            else:
                params = constraints.schema_constraint(schema)
        except ValueError as error:
            raise invalid(str(error)) from error
        return Constraint(params=params, is_thinking=is_thinking)

    def _read(self, record: TurnRecord, question: Question, call_prefix: str) -> tuple[Reply, TurnRecord]:
        tools, is_forced = question.forced_tools or question.tools, bool(question.forced_tools)
        parsed = self._parser.parse(self._decode(self._said(record)), tools, is_forced=is_forced)
        reply = Reply(
            id=uuid.uuid4().hex,
            created_at=int(time.time()),
            model=question.model,
            text=parsed.text,
            reasoning=parsed.reasoning,
            tool_calls=tuple(WireCall(id=f"{call_prefix}{uuid.uuid4().hex[:16]}", call=c) for c in parsed.tool_calls),
            is_cut=record.finish_reason == "length",
            prompt_tokens=len(record.prompt_ids),
            output_tokens=len(record.output_ids),
            cached_tokens=record.meta_info.get("cached_tokens") or 0,
        )
        return reply, replace(record, ill_formed=parsed.ill_formed)

    def _said(self, record: TurnRecord) -> list[int]:
        """The answer without the token that ended it."""
        ids, finish = list(record.output_ids), record.meta_info.get("finish_reason")
        ends = {self._tokenizer.eos_token_id, finish.get("matched") if isinstance(finish, dict) else None}
        return ids[:-1] if ids and record.finish_reason == "stop" and ids[-1] in ends else ids

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""

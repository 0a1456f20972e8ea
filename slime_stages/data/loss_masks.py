"""From chat messages to the tokens to train on, for supervised fine-tuning: which of them the assistant wrote.

The kinds are slime's, by how a model's chat template treats a conversation. A message with a `step_loss_mask` other
than 1 is context only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from slime_stages.errors import DataError, UsageError

Message = dict[str, Any]
MaskKind = Literal["qwen", "qwen3", "qwen3_5", "distill_qwen"]
DISTILLED_TURN = "<｜Assistant｜>"
"""In the vocabulary of models whose template `qwen` does not fit."""
ASSISTANT_TURN, TURN_END, THOUGHTS = "<|im_start|>assistant\n", "<|im_end|>", "<think>\n"
FILLER: Message = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokens:
    """A conversation of T tokens."""

    tokens: list[int]
    """[T]"""

    mask: list[int]
    """[T] 1 on what the assistant wrote."""

    @property
    def response_length(self) -> int:
        """Tokens from the first trained one on; 0 if there is none."""
        return len(self.mask) - self.mask.index(1) if 1 in self.mask else 0


def mask_messages(
    tokenizer: Any, messages: Sequence[Message], kind: MaskKind, *, tools: Sequence[Any] | None = None
) -> MaskedTokens:
    """The conversation's tokens and their mask, for `--loss-mask-type`."""
    if not messages:
        raise DataError("a conversation without messages has nothing to train on")
    if kind == "qwen" and DISTILLED_TURN in tokenizer.get_added_vocab():
        kind = "distill_qwen"
    if kind == "qwen":
        return _by_message(tokenizer, messages, tools)
    if kind == "qwen3":
        return _by_turn(tokenizer, messages, tools)
    if kind == "qwen3_5":
        return _by_offset(tokenizer, messages, tools)
    if kind == "distill_qwen":
        return _last_answer(tokenizer, messages, tools)
    raise UsageError(f"unknown loss_mask_type {kind!r}", hint="qwen, qwen3, qwen3_5 or distill_qwen")


def _by_message(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None) -> MaskedTokens:
    """Each message rendered alone, without the system message that some templates put before it."""
    alone, twice = _render(tokenizer, [FILLER]), _render(tokenizer, [FILLER, FILLER])
    preamble = alone[: 2 * len(alone) - len(twice)]
    parts = []
    for number, message in enumerate(messages):
        text = _render(tokenizer, [message], tools if number == 0 else None)
        parts.append((text if number == 0 else text.removeprefix(preamble), message))
    return _joined(tokenizer, parts)


def _by_turn(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None) -> MaskedTokens:
    """Each message rendered as the last one after another, as which templates keep its thoughts.

    Tool messages in a row are one turn.
    """
    before = _render(tokenizer, [FILLER])
    numbered = enumerate(messages)
    parts = []
    for _, run in groupby(numbered, key=lambda pair: "tool" if pair[1]["role"] == "tool" else pair[0]):
        turn = list(run)
        first, together = turn[0][0], [message for _, message in turn]
        if first == 0:
            text = _render(tokenizer, together, tools)
        else:
            text = _render(tokenizer, [FILLER, *together]).removeprefix(before)
        parts.append((text, together[0]))
    return _joined(tokenizer, parts)


def _by_offset(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None) -> MaskedTokens:
    """The whole conversation rendered once; a token is the assistant's if it begins within one of its turns."""
    text = _render(tokenizer, messages, tools)
    if not tokenizer.is_fast:
        raise UsageError("loss_mask_type qwen3_5 needs a fast tokenizer", hint="one with a tokenizer.json")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = _ids(tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=True))
    if ids != list(encoded["input_ids"]):
        raise DataError("the chat template and its text have different tokens, so that turns cannot be found by it")
    mask = [0] * len(ids)
    for start, stop in _assistant_turns(text, messages):
        for token, (begin, end) in enumerate(encoded["offset_mapping"]):
            if start <= begin < stop and end > begin:
                mask[token] = 1
    return MaskedTokens(tokens=ids, mask=mask)


def _last_answer(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None) -> MaskedTokens:
    """The first message is the prompt, the last one's text the answer."""
    prompt = _tokens(tokenizer, _render(tokenizer, messages[:1], tools, generation=True))
    answer = _tokens(tokenizer, messages[-1]["content"])
    return MaskedTokens(tokens=prompt + answer, mask=[0] * len(prompt) + [_weight(messages[-1])] * len(answer))


def _joined(tokenizer: Any, parts: Sequence[tuple[str, Message]]) -> MaskedTokens:
    """Rendered turns one after the other; of the assistant's, all but what asks for it is trained on."""
    alone, asking = _render(tokenizer, [FILLER]), _render(tokenizer, [FILLER], generation=True)
    given = len(_tokens(tokenizer, asking.removeprefix(alone)))
    tokens: list[int] = []
    mask: list[int] = []
    for text, message in parts:
        ids = _tokens(tokenizer, text)
        own = message["role"] == "assistant" and _weight(message) == 1
        tokens += ids
        mask += [0] * min(given, len(ids)) + [1] * max(0, len(ids) - given) if own else [0] * len(ids)
    return MaskedTokens(tokens=tokens, mask=mask)


def _assistant_turns(text: str, messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Where the trained part of each of the assistant's turns begins and ends, in characters."""
    turns, position = [], 0
    for message in messages:
        if message["role"] != "assistant":
            continue
        found = text.find(ASSISTANT_TURN, position)
        if found < 0:
            raise DataError(f"the chat template renders no {ASSISTANT_TURN!r} for an assistant's message")
        start = found + len(ASSISTANT_TURN)
        start += len(THOUGHTS) if text.startswith(THOUGHTS, start) else 0
        end = text.find(TURN_END, start)
        position = len(text) if end < 0 else end + len(TURN_END)
        stop = position + 1 if text.startswith("\n", position) else position
        if _weight(message) == 1:
            turns.append((start, stop))
    return turns


def _weight(message: Message) -> int:
    return int(message.get("step_loss_mask", 1) == 1)


def _render(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, generation: bool = False
) -> str:
    text = tokenizer.apply_chat_template(
        list(messages), tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=generation
    )
    return str(text)


def _tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _ids(encoded: Any) -> list[int]:
    """Newer tokenizers give a table, older ones its column."""
    return list(encoded["input_ids"] if hasattr(encoded, "keys") else encoded)

"""Which tokens of a conversation are trained on, for templates that treat conversations differently."""

from __future__ import annotations

from typing import Any

import pytest

from slime_stages.data.loss_masks import DISTILLED_TURN, MaskedTokens, mask_messages
from slime_stages.errors import DataError
from tests.fixtures.tiny_model import make_tokenizer

TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
ASK = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
WITH_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}" + TURN + "{%- endfor %}" + ASK
)
"""Like Qwen2.5's: a system message of its own where there is none."""
THINKING = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}"
    "{{ '\\n[' + message['content'] + ']' }}"
    "{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\\n' }}{%- endif %}"
    "{%- elif message['role'] == 'assistant' and not loop.last %}"
    "{{ '<|im_start|>assistant\\n' + message['content'].split('</think>')[-1] + '<|im_end|>\\n' }}"
    "{%- else %}" + TURN + "{%- endif %}{%- endfor %}" + ASK
)
"""Like Qwen3's: thoughts of earlier turns are dropped, tool messages in a row share a turn."""
CHAT = [
    {"role": "user", "content": "What is the sum?"},
    {"role": "assistant", "content": "The sum is seven."},
    {"role": "user", "content": "And then?"},
    {"role": "assistant", "content": "Stop there."},
]


@pytest.fixture
def tokenizer() -> Any:
    return make_tokenizer()


def texts(tokenizer: Any, masked: MaskedTokens) -> tuple[str, list[str]]:
    """The conversation, and its trained parts."""
    parts, open_part = [""], False
    for token, trained in zip(masked.tokens, masked.mask, strict=True):
        if trained:
            parts[-1] += tokenizer.decode([token])
        elif open_part:
            parts.append("")
        open_part = bool(trained)
    return tokenizer.decode(masked.tokens), [part for part in parts if part]


def test_messages_rendered_alone_lose_the_system_message_that_the_template_adds(tokenizer: Any) -> None:
    tokenizer.chat_template = WITH_SYSTEM

    whole, trained = texts(tokenizer, mask_messages(tokenizer, CHAT, "qwen"))

    assert whole == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert trained == ["The sum is seven.<|im_end|>\n", "Stop there.<|im_end|>\n"]


def test_every_turn_keeps_its_thoughts_and_tools_in_a_row_share_one(tokenizer: Any) -> None:
    tokenizer.chat_template = THINKING
    chat = [
        CHAT[0],
        {"role": "assistant", "content": "<think>add</think>search"},
        {"role": "tool", "content": "three"},
        {"role": "tool", "content": "four"},
        {"role": "assistant", "content": "<think>so</think>seven"},
    ]

    whole, trained = texts(tokenizer, mask_messages(tokenizer, chat, "qwen3"))

    assert trained == ["<think>add</think>search<|im_end|>\n", "<think>so</think>seven<|im_end|>\n"]
    assert "<|im_start|>user\n[three]\n[four]<|im_end|>\n" in whole


def test_turns_found_by_their_place_in_the_text_do_not_train_the_thinking_tag_that_opens_them(tokenizer: Any) -> None:
    tokenizer.chat_template = WITH_SYSTEM
    chat = [CHAT[0], {"role": "assistant", "content": "<think>\nadd</think>\nseven"}, *CHAT[2:]]

    whole, trained = texts(tokenizer, mask_messages(tokenizer, chat, "qwen3_5"))

    assert whole == tokenizer.apply_chat_template(chat, tokenize=False)
    assert trained == ["add</think>\nseven<|im_end|>\n", "Stop there.<|im_end|>\n"]


@pytest.mark.parametrize("kind", ["qwen", "qwen3", "qwen3_5"])
def test_a_message_may_be_context_only(tokenizer: Any, kind: Any) -> None:
    tokenizer.chat_template = WITH_SYSTEM
    chat = [CHAT[0], {**CHAT[1], "step_loss_mask": 0}, *CHAT[2:]]

    masked = mask_messages(tokenizer, chat, kind)

    assert texts(tokenizer, masked)[1] == ["Stop there.<|im_end|>\n"]
    assert masked.response_length == sum(masked.mask)


def test_a_distilled_model_is_trained_on_its_last_answer_and_recognised_by_its_vocabulary(tokenizer: Any) -> None:
    tokenizer.add_tokens([DISTILLED_TURN])

    masked = mask_messages(tokenizer, CHAT, "qwen")

    assert texts(tokenizer, masked)[1] == ["Stop there."]
    assert masked == mask_messages(tokenizer, CHAT, "distill_qwen")


def test_tools_are_told_once(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "search"}}

    for kind in ("qwen", "qwen3", "qwen3_5"):
        whole, _ = texts(tokenizer, mask_messages(tokenizer, CHAT, kind, tools=[tool]))  # type: ignore[arg-type]
        assert whole.count("# Tools") == 1
        assert whole == tokenizer.apply_chat_template(CHAT, tools=[tool], tokenize=False)


def test_no_messages_are_refused_and_no_trained_token_is_a_response_of_length_0(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="without messages"):
        mask_messages(tokenizer, [], "qwen")

    assert mask_messages(tokenizer, CHAT[:1], "qwen").response_length == 0

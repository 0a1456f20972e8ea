from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_stages.cli.token_text import decoded, shown_tokens
from slime_stages.data.decoding import load_decoder
from tests.fixtures.tiny_model import make_tokenizer


def test_a_tokenizer_file_is_decoded_without_transformers_and_alike(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer.encode(" answer<|im_end|>")

    assert load_decoder(tmp_path)(ids) == tokenizer.decode(ids) == " answer<|im_end|>"
    assert load_decoder(tmp_path, skip_special_tokens=True)(ids) == " answer"


def test_a_character_of_several_tokens_is_the_last_ones() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("7 €.")

    texts = list(decoded(ids, lambda part: tokenizer.decode(part)))

    assert texts == ["7", " ", "", "", "€", "."]


def test_bytes_that_are_no_text_do_not_hold_back_what_follows() -> None:
    tokenizer = make_tokenizer()
    [*_, last_byte] = tokenizer.encode("€")

    texts = list(decoded([last_byte] * 9 + tokenizer.encode("."), lambda part: tokenizer.decode(part)))

    assert texts == [""] * 7 + ["�" * 8, "", "�."]


def test_a_response_without_mask_and_log_probs_is_all_trained() -> None:
    row: dict[str, Any] = {"tokens": [1, 2], "response_length": 1, "loss_mask": None, "rollout_log_probs": None}

    prompt, response = shown_tokens(row, None)

    assert (prompt.mask, prompt.style, prompt.text) == (None, "dim", "<1>")
    assert (response.mask, response.log_prob, response.style) == (1, None, "")

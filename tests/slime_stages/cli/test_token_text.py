from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_stages.cli.token_text import _transformers_decoder, decoded, load_decoder, shown_tokens
from tests.fixtures.tiny_model import make_tokenizer


def test_transformers_decodes_where_there_is_no_tokenizer_file_of_the_fast_kind(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(" answer<|im_end|>")
    fast, slow = load_decoder(tmp_path), _transformers_decoder(tmp_path)

    assert fast is not None
    assert [fast(ids), slow(ids)] == [" answer<|im_end|>"] * 2


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

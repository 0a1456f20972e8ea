"""The tokens of a sample: coloured by how likely the sampler found them, or in a pipe one a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_stages.errors import DataError, MissingInputError

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.data.decoding import Decoder

PROMPT, NOT_TRAINED, NO_LOG_PROB = "dim", "grey50 underline", ""
BANDS = (
    (0.9, "bold bright_white"),
    (0.5, "bright_green"),
    (0.1, "yellow"),
    (0.01, "dark_orange"),
    (0.0, "bold red"),
)
"""Least probability under the sampler → style, the likeliest first."""
MOST_PIECES = 8
"""Tokens that one character may be made of; with more the bytes are no text."""
BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """One token of a sample."""

    row: int
    """Position in `tokens`, the prompt's included."""
    id: int
    mask: int | None
    """None in the prompt."""
    log_prob: float | None
    """None in the prompt, where the mask is 0, and where none was recorded."""
    text: str
    """Empty if a later token ends the character that it begins."""

    @property
    def style(self) -> str:
        if self.mask is None:
            return PROMPT
        if self.mask == 0:
            return NOT_TRAINED
        if self.log_prob is None:
            return NO_LOG_PROB
        probability = math.exp(min(self.log_prob, 0.0))
        return next(style for least, style in BANDS if probability >= least)


def decoder_of(folder: Path) -> Decoder | None:
    """Ids to text by the tokenizer of a folder; None, and a line on stderr, if it has none that works."""
    from slime_stages.data.decoding import load_decoder
    from slime_stages.stage import say

    try:
        return load_decoder(folder)
    except (DataError, MissingInputError) as error:
        say(f"note: {error.message}; ids are shown")
        return None


def shown_tokens(row: dict[str, Any], decoder: Decoder | None) -> list[ShownToken]:
    """Every token of a rollout row, in order."""
    ids, response = row["tokens"], row["response_length"]
    start = len(ids) - response
    mask = [None] * start + (row["loss_mask"] or [1] * response)
    log_probs = [None] * start + (row["rollout_log_probs"] or [None] * response)
    # prompt and response apart, so that no character is made of tokens of both
    texts = (
        [f"<{token}>" for token in ids]
        if decoder is None
        else [
            *decoded(ids[:start], decoder),
            *decoded(ids[start:], decoder),
        ]
    )
    return [
        ShownToken(row=i, id=ids[i], mask=mask[i], log_prob=log_probs[i] if mask[i] else None, text=texts[i])
        for i in range(len(ids))
    ]


def decoded(ids: Sequence[int], decoder: Decoder) -> Iterator[str]:
    """The text that each token adds to those before it; a character's last token has all of it."""
    begin = done = 0
    for position in range(len(ids)):
        before = decoder(list(ids[begin:done]))
        text = decoder(list(ids[begin : position + 1]))
        is_last = position + 1 == len(ids)
        if text.endswith(BROKEN) and position + 1 - done < MOST_PIECES and not is_last:
            yield ""
            continue
        yield text[len(before) :]
        begin, done = done, position + 1


def print_legend(console: Console) -> None:
    if not console.is_terminal:
        return
    from rich.text import Text

    parts = [("prompt", PROMPT), ("not trained (mask 0)", NOT_TRAINED)]
    parts += [(f"p ≥ {least:g}" if least else f"p < {BANDS[-2][0]:g}", style) for least, style in BANDS]
    legend = Text("tokens: ")
    for name, style in parts:
        legend.append(name, style=style).append("  ")
    console.print(legend, soft_wrap=True)
    console.print()


def print_tokens(console: Console, row: dict[str, Any], decoder: Decoder | None) -> None:
    tokens = shown_tokens(row, decoder)
    console.print()
    if console.is_terminal:
        print_coloured(console, tokens)
    else:
        print_lines(console, tokens)


def print_coloured(console: Console, tokens: Sequence[ShownToken]) -> None:
    from rich.text import Text

    from slime_stages.cli.sample_text import visible

    text = Text()
    for token in tokens:
        text.append(visible(token.text).replace("\n", "↵\n"), style=token.style)
    console.print(text, soft_wrap=True)


def print_lines(console: Console, tokens: Sequence[ShownToken]) -> None:
    """A line a token, its text quoted as in JSON; `-` for what it has not."""
    from slime_stages.cli.sample_text import visible

    console.print(f"{'row':>6}  {'id':>7}  {'mask':>4}  {'logprob':>9}  text", soft_wrap=True)
    for token in tokens:
        mask = "-" if token.mask is None else str(token.mask)
        log_prob = "-" if token.log_prob is None else f"{token.log_prob:.4f}"
        text = visible(json.dumps(token.text, ensure_ascii=False))
        console.print(f"{token.row:>6}  {token.id:>7}  {mask:>4}  {log_prob:>9}  {text}", soft_wrap=True)

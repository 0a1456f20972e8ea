"""One sample as a person reads it: who it is, what it earned, what it said."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from slime_stages.cli.tables import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.reading.lookup import SampleRecord

RULE = "─" * 80


def print_samples(records: Iterable[SampleRecord], *, tokenizer_folder: Path | None) -> None:
    """Print each sample, its tokens instead of its texts if a tokenizer's folder is given."""
    console = make_console()
    decoder = None
    if tokenizer_folder is not None:
        from slime_stages.cli.token_text import decoder_of, print_legend

        decoder = decoder_of(tokenizer_folder)
        print_legend(console)
    for position, record in enumerate(records):
        if position:
            say(console, f"\n{RULE}\n", style="dim")
        print_head(console, record)
        if tokenizer_folder is None:
            print_texts(console, record.rollout)
        else:
            from slime_stages.cli.token_text import print_tokens

            print_tokens(console, record.rollout, decoder)


def print_head(console: Console, record: SampleRecord) -> None:
    for position, line in enumerate(head_lines(record)):
        say(console, line, style="" if position else "bold")
    for note in record.notes:
        say(console, f"note: {note}", style="yellow")


def head_lines(record: SampleRecord) -> list[str]:
    """Identity, generation, reward and training, a line each, and label and metadata if there are any."""
    row = record.rollout
    evaluation = "" if row["split"] == "train" else f" of {row['split']}"
    lines = [
        f"sample {row['iteration']}/{row['shard']}/{row['row']}{evaluation}  {pairs(row, IDENTITY)}",
        f"status {row['status']}, {row['total_length'] - row['response_length']} prompt tokens, "
        f"{row['response_length']} response tokens, weights {', '.join(row['weight_versions']) or '-'}"
        + optional(", seed {}", row["sampling_seed"])
        + optional(", {:.2f} s", row["generate_seconds"]),
        *reward_lines(record.reward),
        *(named_line(name, other, record.reward) for name, other in record.other_rewards.items()),
        *train_lines(record.train),
    ]
    lines += [f"label {row['label']}"] if row["label"] is not None else []
    lines += [f"metadata {row['metadata']}"] if row["metadata"] != "{}" else []
    return lines


IDENTITY = {"index": "index", "group_index": "group", "rollout_id": "rollout", "prompt_id": "prompt"}


def pairs(row: dict[str, Any], names: dict[str, str]) -> str:
    return "  ".join(f"{name} {row[key]}" for key, name in names.items() if row[key] is not None)


def reward_lines(reward: dict[str, Any] | None) -> list[str]:
    return ["reward not committed"] if reward is None else [f"reward {reward_text(reward)}"]


def named_line(name: str, other: dict[str, Any], own: dict[str, Any] | None) -> str:
    """A reward of another name, with its difference from the run's own."""
    values = (other["reward"], own and own["reward"])
    difference = "" if None in values else f" ({values[0] - values[1]:+g})"
    return f"reward {name} {reward_text(other, difference)}"


def reward_text(reward: dict[str, Any], difference: str = "") -> str:
    """`1 (+1), scored in 0.02 s`."""
    value = "none" if reward["reward"] is None else f"{reward['reward']:g}"
    line = f"{value}{difference}, {reward['reward_status']} in {reward['reward_seconds']:.2f} s"
    line += optional(", parts {}", reward["reward_parts"])
    return line + optional(": {}", reward["reward_message"])


def train_lines(train: dict[str, Any] | None) -> list[str]:
    if train is None:
        return []
    fate = (
        f"used in step {train['step']}" if train["used"] else f"not used: {train['drop_reason'] or 'no reason given'}"
    )
    line = f"train {fate}, {train['trained_tokens']} tokens with mask 1"
    line += optional(", advantage {:+.4f}", train["advantage"])
    line += optional(", log-prob gap {:.6f}", train["log_prob_gap"])
    return [line + optional(", entropy {:.4f}", train["entropy"])]


def optional(template: str, value: Any) -> str:
    return "" if value is None else template.format(value)


def print_texts(console: Console, row: dict[str, Any]) -> None:
    for title, text in (("prompt", prompt_text(row)), ("response", row["response"])):
        say(console, f"\n{title}", style="bold cyan")
        say(console, text or f"(the {title} has no text)")


def prompt_text(row: dict[str, Any]) -> str:
    """The prompt as text; of chat messages, each one below its role."""
    if row["prompt"] is not None or row["messages"] is None:
        return str(row["prompt"] or "")
    parts = []
    for message in orjson.loads(row["messages"]):
        content = message.get("content")
        text = content if isinstance(content, str) else orjson.dumps(content).decode()
        parts.append(f"[{message.get('role', '?')}] {text}")
    return "\n".join(parts)


def say(console: Console, text: str, *, style: str = "") -> None:
    """Print what a model or a tool wrote: as it is, but for characters that would command the terminal."""
    from rich.text import Text

    console.print(Text(visible(text), style=style), soft_wrap=True)


def visible(text: str) -> str:
    """Control characters but line ends and tabs as `\\x1b`."""
    return "".join(character if is_printed(character) else ascii(character)[1:-1] for character in text)


def is_printed(character: str) -> bool:
    return character in "\n\t" or not (ord(character) < 32 or 127 <= ord(character) < 160)

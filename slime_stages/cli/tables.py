"""Tables of texts on stdout: whole words always, coloured on a terminal, all columns where there is room for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 1000
STYLES = {
    "committed": "green",
    "missing": "dim",
    "submitted": "blue",
    "queued": "blue",
    "running": "cyan",
    "stale": "yellow",
    "corrupt": "bold red",
    "failed": "bold red",
}
"""By the word that a cell holds; the worst one is the last."""


def make_console(*, stderr: bool = False) -> Console:
    """A console on stdout that prints texts as they are; a pipe or a file has room for every column."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_table(console: Console, rows: Sequence[dict[str, str]], *, droppable: Sequence[str] = ()) -> None:
    """Rows with the same keys. Where the terminal is too narrow, `droppable` columns go, the first ones first."""
    from rich.measure import Measurement

    hidden: list[str] = []
    table = make_table(rows, hidden)
    while Measurement.get(console, console.options.update(width=PIPE_WIDTH), table).maximum > console.width:
        left = [name for name in droppable if name in rows[0] and name not in hidden]
        if not left:
            break
        hidden.append(left[0])
        table = make_table(rows, hidden)
    console.print(table, soft_wrap=True)
    if hidden:
        console.print(f"(too narrow for: {', '.join(hidden)})", style="dim", soft_wrap=True)


def make_table(rows: Sequence[dict[str, str]], hidden: Sequence[str] = ()) -> Table:
    """Words stand left, numbers right."""
    from rich.table import Table
    from rich.text import Text

    names = [name for name in rows[0] if name not in hidden]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        words = any(character.isalpha() for row in rows for character in row[name])
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[name], style=style_of(row[name])) for name in names))
    return table


def style_of(cell: str) -> str:
    return next((style for word, style in reversed(STYLES.items()) if word in cell), "")

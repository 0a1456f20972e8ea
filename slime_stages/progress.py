"""How far long work is: a bar on a terminal, a line every 30 s in a log file, or records for the program above us."""

from __future__ import annotations

import json
import os
import sys
import time
from types import TracebackType
from typing import Any, Self

LINE_SECONDS = 30.0
PIPE_VARIABLE = "SLIME_STAGES_PROGRESS_FD"
"""File descriptor that takes one JSON object a line, where a program above draws the bars."""


class Progress:
    """Counts units done of one piece of work. Use as a context manager; all output goes to stderr or the pipe."""

    def __init__(self, title: str, total: int | None, unit: str = "") -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done = 0
        self._figures: dict[str, Any] = {}
        self._started = self._last_line = time.monotonic()
        self._bar: Any = None
        self._pipe = int(os.environ[PIPE_VARIABLE]) if os.environ.get(PIPE_VARIABLE) else None

    def advance(self, count: int = 1, **figures: Any) -> None:
        """`count` more units are done; `figures` (already rounded) replace the ones shown."""
        self.update(self._done + count, **figures)

    def update(self, done: int, **figures: Any) -> None:
        self._done = done
        self._figures |= figures
        if self._pipe is not None:
            self._send()
        elif self._bar is not None:
            self._bar.update(self._task, completed=done, figures=self._figures_text())
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._print_line()

    def __enter__(self) -> Self:
        if self._pipe is not None:
            self._send()
        elif sys.stderr.isatty():
            self._bar = make_bar()
            self._task = self._bar.add_task(self._title, total=self._total, figures="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._pipe is None and kind is None:
            self._print_line()

    def _figures_text(self) -> str:
        return "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in self._figures.items())

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        total = f"/{self._total}" if self._total is not None else ""
        seconds = time.monotonic() - self._started
        unit = f" {self._unit}" if self._unit else ""
        print(
            f"{self._title}: {self._done}{total}{unit}  {seconds:.0f} s  {self._figures_text()}".rstrip(),
            file=sys.stderr,
        )

    def _send(self) -> None:
        assert self._pipe is not None
        record = {"title": self._title, "done": self._done, "total": self._total, "figures": self._figures_text()}
        try:
            os.write(self._pipe, json.dumps(record).encode() + b"\n")
        except OSError:
            self._pipe = None  # the program above is gone; the work goes on


def make_bar() -> Any:
    """A rich progress bar on stderr with one more text column, `figures`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
        console=Console(stderr=True),
        transient=True,
    )

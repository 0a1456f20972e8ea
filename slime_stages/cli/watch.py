"""Showing a run again and again: in place on a terminal, elsewhere whenever something has changed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from time import sleep, strftime
from typing import TYPE_CHECKING

from slime_stages.cli.status import print_next, print_overview
from slime_stages.cli.tables import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from slime_stages.launch.run_overview import RunOverview
    from slime_stages.run.rundir import RunDir

TRUST_SECONDS = 300.0
"""How long a past iteration that is complete is not looked at again."""


def watch_run(
    run: RunDir, seconds: float, *, limit: int | None, until: Callable[[RunOverview], bool] = lambda overview: False
) -> RunOverview | None:
    """Show the run every so many seconds until `until` says so; what it was then, or None after Ctrl-C.

    Each time the scheduler is asked once.
    """
    from slime_stages.launch.run_overview import run_overview
    from slime_stages.launch.summaries import Summaries

    console = make_console()
    summaries = Summaries(run, trust_seconds=TRUST_SECONDS)
    display = _Live(console, limit) if console.is_terminal else _Plain(console, limit)
    with contextlib.suppress(KeyboardInterrupt), display:
        while True:
            overview = run_overview(run, summaries, newest=limit)
            display.show(overview)
            if until(overview):
                return overview
            sleep(seconds)
    return None


class _Plain(contextlib.AbstractContextManager["_Plain"]):
    """For logs: the whole text, with the time, when it is another one."""

    def __init__(self, console: Console, limit: int | None) -> None:
        self._console, self._limit = console, limit
        self._last = ""

    def show(self, overview: RunOverview) -> None:
        text = text_of(overview, self._limit, width=self._console.width)
        if text != self._last:
            self._console.print(f"[{strftime('%H:%M:%S')}]\n{text}", soft_wrap=True)
            self._console.file.flush()
        self._last = text

    def __exit__(self, *_: object) -> None:
        return None


class _Live(contextlib.AbstractContextManager["_Live"]):
    """For terminals: in place, with as many iterations as there is room for."""

    def __init__(self, console: Console, limit: int | None) -> None:
        from rich.live import Live

        self._console, self._limit = console, limit
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")

    def show(self, overview: RunOverview) -> None:
        from rich.text import Text

        height = max(1, self._console.height - 2)
        for limit in range(min(self._limit or height, height), 0, -1):
            text = text_of(overview, limit, width=self._console.width, is_terminal=True)
            if text.count("\n") <= height:
                break
        self._live.update(Text.from_ansi(f"{text}\n{strftime('%H:%M:%S')}, Ctrl-C ends"), refresh=True)

    def __enter__(self) -> _Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def text_of(overview: RunOverview, limit: int | None, *, width: int, is_terminal: bool = False) -> str:
    """What `status` prints."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, highlight=False, markup=False, emoji=False)
    print_overview(console, overview, limit=limit)
    print_next(console, overview)
    return file.getvalue()

"""What people see while iterations run, and the table at the end. All of it goes to stderr but the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from slime_stages.progress import make_bar

if TYPE_CHECKING:
    from slime_stages.launch.iterate import Event
    from slime_stages.run.rundir import RunDir


class LoopDisplay:
    """Bars on a terminal: iterations, the stage at work, and each stream beside it; in a log a line for each stage that
    is done."""

    def __init__(self, iterations: range) -> None:
        self._iterations = iterations
        self._bar: Any = make_bar() if sys.stderr.isatty() else None
        self._started = time.monotonic()
        self._streams: dict[int, Any] = {}
        """Bars by shard."""

    def on_event(self, event: Event) -> None:
        if event.kind == "start" and event.call is not None:
            self._describe(event.call.title)
        elif event.kind == "done" and event.call is not None:
            self._line(f"{event.call.title}: {event.seconds:.1f} s")
        elif event.kind == "iteration":
            if self._bar is not None:
                self._bar.advance(self._all)
            self._line(f"iteration {event.iteration} is complete")

    def on_progress(self, record: dict[str, Any]) -> None:
        if self._bar is not None:
            self._show(self._now, record)

    @property
    def on_stream(self) -> Callable[[int, dict[str, Any]], None] | None:
        """Shows how far the stream of a shard is with its present iteration; None in a log, since it has its own."""
        return None if self._bar is None else self._show_stream

    def _show_stream(self, shard: int, record: dict[str, Any]) -> None:
        if shard not in self._streams:
            self._streams[shard] = self._bar.add_task(record["title"], total=None, figures="")
        self._show(self._streams[shard], record)

    def _show(self, task: Any, record: dict[str, Any]) -> None:
        values = {key: record[key] for key in ("total", "figures")}
        self._bar.update(task, description=record["title"], completed=record["done"], **values)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._all = self._bar.add_task("iterations", total=len(self._iterations), figures="")
            self._now = self._bar.add_task("starting the engine", total=None, figures="")
            self._bar.start()
        else:
            self._line(f"iterations {self._iterations.start} to {self._iterations.stop - 1}; starting the engine")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _describe(self, title: str) -> None:
        if self._bar is not None:
            self._bar.update(self._now, description=title, completed=0, total=None, figures="")

    def _line(self, text: str) -> None:
        if self._bar is None:
            print(f"[{time.monotonic() - self._started:7.1f} s] {text}", file=sys.stderr, flush=True)


def print_summary(run: RunDir, iterations: range) -> None:
    """A table of the iterations, and all evaluations, on stdout."""
    from slime_stages.cli.iteration_tables import (
        EVALUATION_DROPPABLE,
        SUMMARY_DROPPABLE,
        evaluation_row,
        summary_row,
    )
    from slime_stages.cli.tables import make_console, print_table
    from slime_stages.launch.overview import evaluation_names
    from slime_stages.launch.summaries import Summaries

    console, summaries = make_console(), Summaries(run)
    rows = [summary_row(part) for part in summaries.overviews([(number, "train") for number in iterations])]
    console.print(f"{run.root}: iterations {iterations.start} to {iterations.stop - 1}\n" if rows else str(run.root))
    if rows:
        print_table(console, rows, droppable=SUMMARY_DROPPABLE)
    evaluated = [(version, split) for version in run.iterations() for split in evaluation_names(run, version)]
    if evaluated:
        console.print()
        evaluations = [evaluation_row(part) for part in summaries.overviews(evaluated)]
        print_table(console, evaluations, droppable=EVALUATION_DROPPABLE)

"""`slime-stages query`: SQL over every sample that a run ever made."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyarrow import RecordBatchReader

ROWS_SHOWN, CELL_WIDTH = 200, 80
"""Of a table for reading; the other formats have all."""

Sql = Annotated[
    str | None, typer.Argument(metavar="[SQL]", help="One statement; - reads it from stdin.", show_default=False)
]
Format = Annotated[
    Literal["table", "csv", "json", "parquet"],
    typer.Option("--format", help="table: for reading. json: one object a line. parquet: needs --output."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of stdout.")]


def command(sql: Sql = None, run: RunFolder = None, kind: Format = "table", output: Output = None) -> None:
    """Ask SQL of all that a run has committed: samples, rewards, train, eval, prompts, manifests.

    Without SQL it lists these views.
    """
    from slime_stages.reading.sql import connect, errors_told, run_query
    from slime_stages.run.rundir import find_run

    if output is not None and kind == "table":
        raise UsageError("--output is for csv, json and parquet", hint=f"--format csv --output {output}")
    if output is None and kind == "parquet":
        raise UsageError("a Parquet file is not for a terminal", hint="--format parquet --output FILE")
    connection = connect(find_run(run))
    if sql is None:
        print_views(connection)
        return
    with errors_told():
        write_rows(run_query(connection, sys.stdin.read() if sql == "-" else sql), kind, output)


def write_rows(rows: RecordBatchReader, kind: str, output: Path | None) -> None:
    if kind == "parquet":
        assert output is not None
        write_parquet(rows, output)
    elif kind == "table":
        print_rows(rows)
    else:
        write_text(rows, kind, output)


def print_views(connection: DuckDBPyConnection) -> None:
    from slime_stages.cli.tables import make_console, print_table
    from slime_stages.reading.sql import VIEWS, run_query

    counts = {view: run_query(connection, f"select count(*) as n from {view}").read_all()["n"][0] for view in VIEWS}
    rows = [{"view": view, "rows": f"{counts[view].as_py():,}", "what": what} for view, what in VIEWS.items()]
    print_table(make_console(), rows)


def print_rows(rows: RecordBatchReader) -> None:
    from itertools import islice

    from slime_stages.cli.tables import make_console, print_table

    every = rows_of(rows)
    shown = list(islice(every, ROWS_SHOWN))
    if not shown:
        print("(no rows)", file=sys.stderr)
        return
    console = make_console()
    print_table(console, [{name: cell(value) for name, value in row.items()} for row in shown])
    if left := sum(1 for _ in every):
        print(f"({left:,} more rows; --format csv has all)", file=sys.stderr)


def cell(value: Any) -> str:
    """In one line, and short."""
    from slime_stages.cli.sample_text import visible

    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    text = visible(" ".join(text.split()))
    return text if len(text) <= CELL_WIDTH else f"{text[: CELL_WIDTH - 1]}…"


def write_text(rows: RecordBatchReader, kind: str, output: Path | None) -> None:
    if output is None:
        print_text(rows, kind, sys.stdout)
        return
    with output.open("w", newline="", encoding="utf-8") as file:
        print_text(rows, kind, file)


def print_text(rows: RecordBatchReader, kind: str, file: Any) -> None:
    from slime_stages.reading.sql import json_line

    if kind == "json":
        file.writelines(json_line(row).decode() for row in rows_of(rows))
        return
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows.schema.names)
    writer.writerows(row.values() for row in rows_of(rows))


def write_parquet(rows: RecordBatchReader, output: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(output, rows.schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)


def rows_of(rows: RecordBatchReader) -> Iterator[dict[str, Any]]:
    for batch in rows:
        yield from batch.to_pylist()

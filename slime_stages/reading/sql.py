"""SQL over all that a run has committed, through DuckDB: its shards and manifests as views, without copying them.

What has no manifest, what moved to `superseded/`, and rewards and trainings of an earlier rollout are not in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from slime_stages.data.schema import PROMPTS, REWARD, ROLLOUT, TRAIN, ShardSchema
from slime_stages.errors import DataError, MissingInputError, SlimeStagesError, UsageError
from slime_stages.named_rewards import OWN_NAME, name_of
from slime_stages.run.manifest import Manifest, data_path, read_manifest
from slime_stages.run.rundir import RunDir, program_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

VIEWS = {
    "samples": "One row a sample of training: the columns of rollout shards.",
    "rewards": f"One row a sample and reward, evaluations too; `name` is `{OWN_NAME}` or that of `reward --as`.",
    "train": "One row a sample of a trained iteration: what became of it.",
    "eval": "One row a sample of an evaluation, with its own reward; `split` is the set, `iteration` the weights.",
    "prompts": "One row a prompt of training.",
    "manifests": "One row a committed output: what it was made from, when, where, and how it went.",
}
DAMAGED = "slime-stages status   names files that are not as they were committed"
_MANIFESTS = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "split", "path", "content", "digest", "host", "code")),
        *((name, pa.int64()) for name in ("iteration", "shard", "rows", "tokens", "bytes")),
        *((name, pa.int64()) for name in ("config_revision", "policy_version")),
        *((name, pa.string()) for name in ("started", "finished")),
        *((name, pa.map_(pa.string(), pa.int64())) for name in ("counts",)),
        *((name, pa.map_(pa.string(), pa.float64())) for name in ("metrics", "seconds")),
        *((name, pa.map_(pa.string(), pa.string())) for name in ("inputs", "job")),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    path: Path
    manifest: Manifest

    @property
    def place(self) -> tuple[int, str, int | None]:
        return self.manifest.iteration, self.manifest.split, self.manifest.shard


def connect(run: RunDir) -> DuckDBPyConnection:
    """A connection that knows the views of this run, as it is now."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingInputError(
            "SQL over a run needs the package duckdb", hint="pip install 'slime-stages[query]'"
        ) from error
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        _define_views(connection, run, list(_outputs(run)))
    except duckdb.Error as error:  # it looks into every file
        raise DataError(f"DuckDB: {error}", hint=DAMAGED) from error
    return connection


def run_query(connection: DuckDBPyConnection, query: str) -> pa.RecordBatchReader:
    """The rows that a statement gives, in batches, as they are read; none for a statement that gives no rows."""
    relation = connection.sql(query)
    if relation is None:
        return pa.RecordBatchReader.from_batches(pa.schema([]), [])
    return relation.to_arrow_reader(10_000)


@contextmanager
def errors_told() -> Iterator[None]:
    """Around asking and reading: UsageError, in DuckDB's words, for what it cannot do; DataError for damaged files."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise DataError(f"DuckDB: {error}", hint=DAMAGED) from error
    except duckdb.Error as error:
        views = ", ".join(VIEWS)
        raise UsageError(
            f"DuckDB: {error}", hint=f'the views are {views}; slime-stages query "describe samples"'
        ) from error


def json_line(row: Mapping[str, Any]) -> bytes:
    return orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)


def _outputs(run: RunDir) -> Iterator[_Output]:
    """Every committed output that can be read; `status` tells of others."""
    base = run.iterations_path
    for pattern in ("*/[rts]*/*.json", "*/eval/*/[r]*/shard-*.json"):
        for path in sorted(base.glob(pattern)):
            if path.name != "manifest.json" and not path.name.startswith("shard-"):
                continue
            try:
                yield _Output(path=path, manifest=read_manifest(path))
            except SlimeStagesError:
                continue


def _define_views(connection: DuckDBPyConnection, run: RunDir, outputs: list[_Output]) -> None:
    rollouts = {output.place: output for output in outputs if output.manifest.kind == "rollout"}
    fresh = [output for output in outputs if _is_of(rollouts, output)]
    _view(connection, "samples", ROLLOUT, [o for o in rollouts.values() if o.manifest.split == "train"])
    _view(connection, "eval_rollouts", ROLLOUT, [o for o in rollouts.values() if o.manifest.split != "train"])
    _view(connection, "train", TRAIN, [output for output in fresh if output.manifest.kind == "train"])
    _rewards(connection, [output for output in fresh if program_of(output.manifest.kind) == "reward"])
    connection.execute(
        "create view eval as select sample.* exclude (reward, reward_parts), scored.reward, scored.reward_parts, "
        "scored.reward_status from eval_rollouts sample left join rewards scored on scored.split = sample.split and "
        "scored.iteration = sample.iteration and scored.shard = sample.shard and scored.row = sample.row "
        f"and scored.name = '{OWN_NAME}'"
    )
    prompts = run.prompts_path()
    _files_view(connection, "prompts", PROMPTS, [prompts] if prompts.exists() else [])
    connection.register("manifests", pa.Table.from_pylist([_row(run, output) for output in outputs], _MANIFESTS))


def _is_of(rollouts: Mapping[tuple[int, str, int | None], _Output], output: _Output) -> bool:
    """Whether it was made from the rollouts that are there now."""
    manifest = output.manifest
    if program_of(manifest.kind) == "reward":
        made_from = {output.place: manifest.inputs.get("rollout")}
    else:
        shards = {key: digest for key, digest in manifest.inputs.items() if key.startswith("rollout/")}
        made_from = {(manifest.iteration, manifest.split, int(key[8:])): digest for key, digest in shards.items()}
    return all(place in rollouts and rollouts[place].manifest.content == digest for place, digest in made_from.items())


def _rewards(connection: DuckDBPyConnection, outputs: list[_Output]) -> None:
    by_name: dict[str, list[_Output]] = {OWN_NAME: []}
    for output in outputs:
        by_name.setdefault(name_of(output.manifest.kind) or OWN_NAME, []).append(output)
    parts = []
    for number, (name, found) in enumerate(by_name.items()):  # SQL takes names that differ by case for one
        _view(connection, f"rewards_{number}", REWARD, found)
        parts.append(f"select '{name}' as name, * from rewards_{number}")
    connection.execute(f"create view rewards as {' union all by name '.join(parts)}")


def _view(connection: DuckDBPyConnection, view: str, schema: ShardSchema, outputs: list[_Output]) -> None:
    found = [data_path(output.path, output.manifest) for output in outputs]
    _files_view(connection, view, schema, [path for path in found if path.exists()])


def _files_view(connection: DuckDBPyConnection, view: str, schema: ShardSchema, paths: list[Path]) -> None:
    """Of files whose columns may differ by the version that wrote them; without any, all columns and no row."""
    if not paths:
        connection.register(view, schema.arrow.empty_table())
        return
    listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    connection.execute(f'create view "{view}" as select * from read_parquet([{listed}], union_by_name = true)')


def _row(run: RunDir, output: _Output) -> dict[str, Any]:
    values = output.manifest.model_dump()
    maps = {name: list(values[name].items()) for name in ("counts", "metrics", "seconds", "inputs", "job")}
    return {
        **{name: values.get(name) for name in _MANIFESTS.names},
        **maps,
        "path": str(output.path.relative_to(run.root)),
    }

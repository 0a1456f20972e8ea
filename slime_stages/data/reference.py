"""`docs/columns.md`, generated from the schemas: `python -m slime_stages.data.reference > docs/columns.md`."""

from __future__ import annotations

import pyarrow as pa

from slime_stages.data.schema import ENUM, SCHEMAS, Column, ShardSchema

FILES = {
    "prompts": ("prompts/prompts.parquet", "prompts/eval-NAME.parquet"),
    "prompts_with_media": ("prompts/prompts.parquet", "prompts/eval-NAME.parquet"),
    "rollout": ("iterations/000012/rollout/shard-00003-of-00008.parquet",),
    "reward": ("iterations/000012/reward/shard-00003-of-00008.parquet",),
    "train": ("iterations/000012/train/samples.parquet",),
}
"""Kind → where its files lie in a run."""

OPENING = """\
# Columns

Every table of a run is Parquet and opens without slime-stages:

```sql
SELECT iteration, avg(r.reward), avg(s.response_length)
FROM read_parquet('RUN/iterations/*/rollout/*.parquet') AS s
JOIN read_parquet('RUN/iterations/*/reward/*.parquet') AS r USING (iteration, split, shard, row)
GROUP BY iteration ORDER BY iteration
```

Where the table says null, null means that the value was not given; an empty list is something else. A column of type
`json` is text. P is the count of prompt tokens, R that of response tokens. Rows whose lists have another length than
declared are refused, on write and on read. A file carries its kind and schema version in its metadata, and a reader of
another version refuses it. This page is generated from `slime_stages/data/schema.py`.
"""


def columns_page() -> str:
    """The page as Markdown."""
    return "\n".join([OPENING, *(_section(schema) for schema in SCHEMAS)])


def _section(schema: ShardSchema) -> str:
    files = ", ".join(f"`{path}`" for path in FILES[schema.kind])
    rows = [_row(column, _length(schema, column.name)) for column in schema.columns]
    return "\n".join(
        [
            f"## {schema.kind}",
            "",
            f"{schema.purpose} Version {schema.version}; {files}.",
            "",
            "| column | type | null | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(column: Column, length: str) -> str:
    meaning = column.meaning.replace("|", "\\|") + length
    if column.volatile:
        meaning += " (left out of the content digest)"
    return f"| `{column.name}` | {type_name(column)} | {'null' if column.nullable else ''} | {meaning} |"


def _length(schema: ShardSchema, name: str) -> str:
    if name in schema.at_most:
        return f"; at most `{schema.at_most[name]}`"
    if name not in schema.parallel:
        return ""
    length, plus = schema.parallel[name]
    return f"; length `{length}`" + (f" + {plus}" if plus else "")


def type_name(column: Column) -> str:
    """`list<int32>`, `json`, `enum`: short names that need no Arrow."""
    if column.is_json:
        return "json"
    if column.type == ENUM:
        return "enum"
    is_list = pa.types.is_list(column.type)
    name = str(column.type.value_type if is_list else column.type)
    name = {"float": "float32", "double": "float64"}.get(name, name)
    return f"list<{name}>" if is_list else name


if __name__ == "__main__":
    print(columns_page(), end="")

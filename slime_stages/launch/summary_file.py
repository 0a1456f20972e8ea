"""A summary on disk: an iteration's overview, and what it is true of."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from slime_stages import __version__
from slime_stages.errors import DataError
from slime_stages.launch.looks import Part
from slime_stages.launch.overview import IterationOverview, OpenOutput, Problem, StageOverview
from slime_stages.run.commit import temporary_name
from slime_stages.run.digest import digest_bytes, digest_json, sealed, unsealed
from slime_stages.run.rundir import RunDir

SUMMARY_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An overview, and what it is true of."""

    shards: int
    looks: str
    """Digest of sizes and times of manifests and folders."""
    data_looks: str
    """Of those of the data files."""
    config_revision: int
    config: str
    """As `config_as_read` has it."""
    outside: dict[str, str]
    """Manifest of another iteration, below the run → its content."""
    contents: dict[str, str]
    """Manifest of this iteration that others depend on → its content."""
    overview: IterationOverview


def load_summary(run: RunDir, run_id: str, part: Part) -> Summary | None:
    """None if there is none of this run, in this place, by this version."""
    path = run.summary_path(*part)
    try:
        values = unsealed(orjson.loads(path.read_bytes()), path)
        expected = _identity(run, run_id)
        if {key: values.pop(key) for key in expected} != expected:
            return None
        return Summary(**{**values, "overview": _overview(values["overview"])})
    except (OSError, orjson.JSONDecodeError, DataError, KeyError, TypeError, AttributeError):
        return None


def save_summary(run: RunDir, run_id: str, part: Part, summary: Summary) -> None:
    """Nothing depends on it: it need not survive a crash, and a run that is only read goes without."""
    values = {name: getattr(summary, name) for name in Summary.__slots__}
    values["overview"] = asdict(summary.overview)
    data = orjson.dumps(sealed({**_identity(run, run_id), **values}))
    path = run.summary_path(*part)
    temporary = temporary_name(path)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)


def config_as_read(run: RunDir, revision: int) -> str | None:
    """Digest of a frozen config's file and of the code that reads it; None if the file is gone.

    As long as it is the same, so are the digests by which outputs are stale. To read the config for these would take
    longer than all the rest.
    """
    try:
        return digest_json([digest_bytes(run.config_revision_path(revision).read_bytes()), _config_code()])
    except OSError:
        return None


@cache
def _config_code() -> str:
    """Digest of the code that reads configs: in a checkout it changes without its version."""
    library = Path(__file__).parents[1]
    sources = sorted((library / "config").rglob("*.py"))
    return digest_json([digest_bytes(path.read_bytes()) for path in (*sources, library / "stage.py")])


def _identity(run: RunDir, run_id: str) -> dict[str, Any]:
    return {"version": SUMMARY_VERSION, "code": __version__, "root": str(run.root), "run_id": run_id}


def _overview(values: dict[str, Any]) -> IterationOverview:
    stages = {
        name: StageOverview(**{**stage, "open_outputs": tuple(OpenOutput(**each) for each in stage["open_outputs"])})
        for name, stage in values["stages"].items()
    }
    problems = tuple(Problem(**problem) for problem in values["problems"])
    return IterationOverview(**{**values, "stages": stages, "problems": problems, "tasks": ()})

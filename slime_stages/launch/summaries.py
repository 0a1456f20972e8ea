"""What is known of past iterations, kept in the run, so that a thousand of them need not be read again.

    metrics/summaries/000012.json       the iteration's overview, and what it was true of

It is true while no file of the iteration has changed, by its size and its time of change, while the manifests outside
of the iteration that it depends on have the same content, and while the config says the same. A summary that is lost,
altered or not true any more is made again from the manifests.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from slime_stages import __version__
from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.launch.overview import IterationOverview, OpenOutput, Problem, StageOverview, iteration_overview
from slime_stages.lineage import Kept, manifests_kept
from slime_stages.run.commit import temporary_name
from slime_stages.run.digest import digest_bytes, sealed, unsealed
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import SECTIONS_READ, StageCall, config_digest, read_config, read_run_plan

SUMMARY_VERSION = 1
SETTLED_SECONDS = 10.0
"""Younger files might change once more without a change of their times, which some file systems keep in seconds."""
SLOW_SECONDS = 0.02
"""Looks at one iteration's files that take longer than this wait for a network: then many look at once."""
SLOW_LOOKS = 5
"""So many in succession: a single one may have waited for a processor."""
LOOKERS = 16

Part = tuple[int, str]
"""(iteration, split)."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An overview, and what it is true of."""

    shards: int
    signature: str
    """Over size and time of every file that the states depend on."""
    config_revision: int
    config: dict[str, str]
    """Stage → digest of what it reads of the config."""
    outside: dict[str, str]
    """Manifest of another iteration, below the run → its content."""
    contents: dict[str, str]
    """Manifest of this iteration that others depend on → its content."""
    overview: IterationOverview


class Summaries:
    """The overviews of a run's iterations and evaluations, from summaries where these are true."""

    def __init__(self, run: RunDir, *, trust_seconds: float = 0.0) -> None:
        """`trust_seconds`: how long a complete iteration that was looked at is not looked at again."""
        self._run = run
        self._run_id = run.run_id()
        self._trust_seconds = trust_seconds
        self._trusted: dict[Part, tuple[float, Summary]] = {}
        self._contents: dict[str, str | None] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}

    def overviews(self, parts: Sequence[Part]) -> list[IterationOverview]:
        """In the order asked for, which is best that of the iterations: each is compared with the ones before it."""
        self._contents.clear()
        now = time.time()
        trusted = {part: each for part, (at, each) in self._trusted.items() if now - at < self._trust_seconds}
        stored = {part: each for part in parts if part not in trusted and (each := self._load(part)) is not None}
        signatures = _each(stored, lambda part: digest_bytes(_look(self._run, part, stored[part].shards).tobytes()))
        unchanged = trusted | {part: each for part, each in stored.items() if signatures[part] == each.signature}
        made = _each([part for part in parts if part not in unchanged], self._made)
        overviews = []
        for part in parts:
            summary = unchanged.get(part)
            if summary is not None and self._holds(summary, part):
                self._contents.update(summary.contents)
                overview = summary.overview
            else:
                summary, overview = made[part] if part in made else self._made(part)
            if summary is not None and overview.is_complete and part not in trusted:
                self._trusted[part] = (now, summary)
            overviews.append(overview)
        return overviews

    def _load(self, part: Part) -> Summary | None:
        path = self._run.summary_path(*part)
        try:
            values = unsealed(orjson.loads(path.read_bytes()), path)
            expected = _identity(self._run, self._run_id)
            if {key: values.pop(key) for key in expected} != expected:
                return None
            return Summary(**{**values, "overview": _overview(values["overview"])})
        except (OSError, orjson.JSONDecodeError, DataError, KeyError, TypeError, AttributeError):
            return None

    def _holds(self, summary: Summary, part: Part) -> bool:
        """Whether what it depends on outside of the iteration's folder is as it was."""
        try:
            if summary.config != self._config(summary.config_revision, part[1]):
                return False
        except SlimeStagesError:
            return False
        return all(self._content(name) == content for name, content in summary.outside.items())

    def _config(self, revision: int, split: str) -> dict[str, str]:
        kind = "train" if split == "train" else "eval"
        if (revision, kind) not in self._configs:
            config = read_config(self._run, revision)
            self._configs[revision, kind] = {
                stage: config_digest(config, StageCall(stage=stage, run=self._run.root, iteration=0, split=kind))
                for stage in SECTIONS_READ
            }
        return self._configs[revision, kind]

    def _content(self, name: str) -> str | None:
        if name not in self._contents:
            try:
                self._contents[name] = read_manifest(self._run.root / name).content
            except SlimeStagesError:
                self._contents[name] = None
        return self._contents[name]

    def _made(self, part: Part) -> tuple[Summary | None, IterationOverview]:
        """From the manifests; with its summary, which is kept. What changes meanwhile has another signature then."""
        with manifests_kept() as kept:
            try:
                plan = read_run_plan(self._run, *part)
            except SlimeStagesError:
                return None, iteration_overview(self._run, *part)
            before = _look(self._run, part, plan.shard_count)
            overview = iteration_overview(self._run, *part)
        outside = self._outside(kept, part)
        if outside is None or not _has_usual_names(kept, self._run, part):
            return None, overview
        summary = Summary(
            shards=plan.shard_count,
            signature=digest_bytes(before.tobytes()),
            config_revision=plan.config_revision,
            config=self._config(plan.config_revision, part[1]),
            outside=outside,
            contents=self._own_contents(kept, part),
            overview=overview,
        )
        self._contents.update(summary.contents)
        if max(before[1::2]) < (time.time() - SETTLED_SECONDS) * 1e9:
            self._save(part, summary)
        return summary, overview

    def _outside(self, kept: Kept, part: Part) -> dict[str, str] | None:
        """What was read outside of the iteration; None if something there could not be read."""
        folder, root = f"{_folder(self._run, part)}/", f"{self._run.root}/"
        found = {
            name.removeprefix(root): each for path, each in kept.items() if not (name := str(path)).startswith(folder)
        }
        if any(not isinstance(each, Manifest) for each in found.values()):
            return None
        return {name: each.content for name, each in found.items() if isinstance(each, Manifest)}

    def _own_contents(self, kept: Kept, part: Part) -> dict[str, str]:
        paths = [self._run.manifest_path(stage, part[0]) for stage in ("train", "sync")] if part[1] == "train" else []
        found = {path: kept.get(path) for path in paths}
        return {str(p.relative_to(self._run.root)): m.content for p, m in found.items() if isinstance(m, Manifest)}

    def _save(self, part: Part, summary: Summary) -> None:
        """Nothing depends on it: it need not survive a crash, and a run that is only read goes without."""
        values = {name: getattr(summary, name) for name in Summary.__slots__}
        values["overview"] = asdict(summary.overview)
        data = orjson.dumps(sealed({**_identity(self._run, self._run_id), **values}))
        path = self._run.summary_path(*part)
        temporary = temporary_name(path)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.rename(path)
            finally:
                temporary.unlink(missing_ok=True)


def _each(parts: Iterable[Part], work: Callable[[Part], Result]) -> dict[Part, Result]:
    """What the work gives for each part: one after the other, or many at once where they wait for a network."""
    rest, results, slow_count = iter(parts), {}, 0
    for part in rest:
        waited = time.monotonic() - time.thread_time()
        results[part] = work(part)
        slow_count = slow_count + 1 if time.monotonic() - time.thread_time() - waited > SLOW_SECONDS else 0
        if slow_count == SLOW_LOOKS:
            break
    others = list(rest)
    with ThreadPoolExecutor(LOOKERS) as pool:
        results.update(zip(others, pool.map(work, others), strict=True))
    return results


def _folder(run: RunDir, part: Part) -> str:
    return str(run.plan_path(*part).parent)


def _identity(run: RunDir, run_id: str) -> dict[str, Any]:
    return {"version": SUMMARY_VERSION, "code": __version__, "root": str(run.root), "run_id": run_id}


def _look(run: RunDir, part: Part, shards: int) -> array[int]:
    """Size and time of the last change of every file that the states depend on; -1, -1 for those that are not there.

    Any change of a file, also one that puts its time of modification back, moves its `ctime`.
    """
    base, stat = _folder(run, part), os.stat
    found = array("q")
    for folder, names in ((f"{run.root}/weights/000000", ("weights.json",)), *_names(base, shards, part[1])):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            found.extend((-1, -1) * len(names))
            continue
        for name in names:
            try:
                status = stat(name, dir_fd=descriptor)
                found.extend((status.st_size, status.st_ctime_ns))
            except OSError:
                found.extend((-1, -1))
        os.close(descriptor)
    return found


def _names(base: str, shards: int, split: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Folder → names of the files in it."""
    yield base, ("plan.json", "reward.json")
    for stage in ("rollout", "reward"):
        yield f"{base}/{stage}", _shard_names(shards)
    if split == "train":
        yield f"{base}/train", ("manifest.json", "samples.parquet")
        yield f"{base}/sync", ("manifest.json",)


@lru_cache
def _shard_names(shards: int) -> tuple[str, ...]:
    return tuple(
        f"shard-{shard:05d}-of-{shards:05d}.{suffix}" for shard in range(shards) for suffix in ("json", "parquet")
    )


def _has_usual_names(kept: Kept, run: RunDir, part: Part) -> bool:
    """Whether the data lies where `_look` looks: not where training reads rewards of another name."""
    folder = f"{_folder(run, part)}/"
    if any(str(path).startswith(f"{folder}reward-") for path in kept):
        return False
    return all(
        isinstance(each, SlimeStagesError)
        or each.data in (None, "samples.parquet" if each.kind == "train" else f"{path.name[:-5]}.parquet")
        for path, each in kept.items()
        if str(path).startswith(folder)
    )


def _overview(values: dict[str, Any]) -> IterationOverview:
    stages = {
        name: StageOverview(**{**stage, "open_outputs": tuple(OpenOutput(**each) for each in stage["open_outputs"])})
        for name, stage in values["stages"].items()
    }
    problems = tuple(Problem(**problem) for problem in values["problems"])
    return IterationOverview(**{**values, "stages": stages, "problems": problems, "tasks": ()})

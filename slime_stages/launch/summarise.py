"""Making an iteration's summary from its manifests."""

from __future__ import annotations

from slime_stages.errors import SlimeStagesError
from slime_stages.launch.iteration_overview import iteration_overview
from slime_stages.launch.looks import Look, Part, folder_of
from slime_stages.launch.overview import IterationOverview
from slime_stages.launch.summary_file import Summary, config_as_read
from slime_stages.lineage import Kept, manifests_kept
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_run_plan


def summarise(run: RunDir, part: Part) -> tuple[Summary | None, IterationOverview, int]:
    """(summary, or None where there is nothing that it could be true of; the overview; the last change of a file).

    Files are looked at before they are read: what changes meanwhile does not look as it did then.
    """
    with manifests_kept() as kept:
        try:
            plan = read_run_plan(run, *part)
        except SlimeStagesError:
            return None, iteration_overview(run, *part), 0
        config = config_as_read(run, plan.config_revision)
        looks, data_looks = (Look(run, part, plan.shard_count, at_data=at_data) for at_data in (False, True))
        overview = iteration_overview(run, *part)
    outside = _outside(kept, run, part)
    if outside is None or config is None or not _has_usual_names(kept, run, part):
        return None, overview, 0
    summary = Summary(
        shards=plan.shard_count,
        looks=looks.digest,
        data_looks=data_looks.digest,
        config_revision=plan.config_revision,
        config=config,
        outside=outside,
        contents=_own_contents(kept, run, part),
        overview=overview,
    )
    return summary, overview, max(looks.last_change, data_looks.last_change)


def content_of(run: RunDir, name: str) -> str | None:
    """The content of a manifest, below the run; None if it cannot be read."""
    try:
        return read_manifest(run.root / name).content
    except SlimeStagesError:
        return None


def _outside(kept: Kept, run: RunDir, part: Part) -> dict[str, str] | None:
    """What was read outside of the iteration; None if something there could not be read."""
    folder, root = f"{folder_of(run, part)}/", f"{run.root}/"
    found = {name.removeprefix(root): each for path, each in kept.items() if not (name := str(path)).startswith(folder)}
    if any(not isinstance(each, Manifest) for each in found.values()):
        return None
    return {name: each.content for name, each in found.items() if isinstance(each, Manifest)}


def _own_contents(kept: Kept, run: RunDir, part: Part) -> dict[str, str]:
    paths = [run.manifest_path(stage, part[0]) for stage in ("train", "sync")] if part[1] == "train" else []
    found = {path: kept.get(path) for path in paths}
    return {str(path.relative_to(run.root)): each.content for path, each in found.items() if isinstance(each, Manifest)}


def _has_usual_names(kept: Kept, run: RunDir, part: Part) -> bool:
    """Whether the data lies where a `Look` looks: not where training reads rewards of another name."""
    folder = f"{folder_of(run, part)}/"
    if any(str(path).startswith(f"{folder}reward-") for path in kept):
        return False
    return all(
        isinstance(each, SlimeStagesError)
        or each.data in (None, "samples.parquet" if each.kind == "train" else f"{path.name[:-5]}.parquet")
        for path, each in kept.items()
        if str(path).startswith(folder)
    )

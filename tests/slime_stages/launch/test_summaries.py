from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from slime_stages import lineage, stage
from slime_stages.launch import iteration_overview, looks, summaries, summarise, summary_file
from slime_stages.launch.overview import IterationOverview
from slime_stages.launch.states import first_incomplete
from slime_stages.launch.summaries import Summaries
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    """Two complete iterations, whose files count as settled at once."""
    monkeypatch.setattr(summaries, "SETTLED_SECONDS", 0.0)
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))
    small.complete(0)
    small.complete(1)
    return small


@pytest.fixture
def manifests_read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every manifest that is read from now on."""
    paths: list[Path] = []

    def read(path: Path) -> Manifest:
        paths.append(path)
        return read_manifest(path)

    for module in (lineage, stage, iteration_overview, summarise):
        monkeypatch.setattr(module, "read_manifest", read)
    return paths


def looked_at(small: SmallRun, *iterations: int) -> list[IterationOverview]:
    return Summaries(small.run).overviews([(iteration, "train") for iteration in iterations or (0, 1)])


def states(overview: IterationOverview) -> list[str]:
    return [stage.state for stage in overview.stages.values()]


def test_each_manifest_is_read_once_and_then_not_at_all(small: SmallRun, manifests_read: list[Path]) -> None:
    first = looked_at(small)
    read = [*manifests_read]
    again = looked_at(small)

    assert len(read) == len(set(read)) + 2  # iteration 1 looks back at the train and the sync of iteration 0
    assert manifests_read == read
    assert again == first
    assert [overview.is_complete for overview in again] == [True, True]


def remove_data(small: SmallRun) -> None:
    small.run.shard_path("rollout", 0, 1, 2).unlink()


def cut_data(small: SmallRun) -> None:
    os.truncate(small.run.shard_path("rollout", 0, 1, 2), 10)


def remove_manifest(small: SmallRun) -> None:
    small.run.manifest_path("rollout", 0, 1, 2).unlink()


def alter_manifest_and_put_its_time_back(small: SmallRun) -> None:
    path = small.run.manifest_path("rollout", 0, 1, 2)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"rows": 4', b'"rows": 5'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize(
    ("damage", "state"),
    [
        (remove_data, "corrupt"),
        (cut_data, "corrupt"),
        (remove_manifest, "missing"),
        (alter_manifest_and_put_its_time_back, "corrupt"),
    ],
)
def test_damage_to_a_past_iteration_is_seen(small: SmallRun, damage: Callable[[SmallRun], None], state: str) -> None:
    looked_at(small)
    damage(small)

    assert looked_at(small)[0].stages["rollout"].state == state
    assert first_incomplete(small.run) == 0


def replace_data(small: SmallRun) -> None:
    path = small.run.shard_path("rollout", 0, 1, 2)
    other = path.with_name("other")
    other.write_bytes(b"too short")
    other.rename(path)


@pytest.mark.parametrize("damage", [remove_data, replace_data, remove_manifest, alter_manifest_and_put_its_time_back])
def test_damage_is_seen_without_a_close_look(small: SmallRun, damage: Callable[[SmallRun], None]) -> None:
    looked_at(small)
    damage(small)

    assert not Summaries(small.run).overviews([(0, "train")], closely=())[0].is_complete


def test_data_cut_in_its_place_takes_a_close_look(small: SmallRun) -> None:
    parts = [(0, "train"), (1, "train")]
    looked_at(small)
    cut_data(small)

    def is_complete(closely: list[tuple[int, str]] | None) -> bool:
        return Summaries(small.run).overviews(parts, closely=closely)[0].is_complete

    assert is_complete(parts[1:])
    assert not is_complete(parts[:1])
    assert not is_complete(None)


def test_what_is_not_complete_is_always_looked_at_closely(small: SmallRun) -> None:
    path = small.run.shard_path("rollout", 0, 1, 2)
    whole = path.read_bytes()
    cut_data(small)
    assert not looked_at(small)[0].is_complete

    with path.open("r+b") as file:
        file.write(whole)

    assert Summaries(small.run).overviews([(0, "train")], closely=())[0].is_complete


def test_weights_made_again_differently_leave_the_next_iteration_stale(small: SmallRun) -> None:
    looked_at(small)
    plan = small.plan(0)
    small.rollout(plan, 1, samples=made_up_samples(plan, 1, word="other"), force=True)
    path = small.run.manifest_path("sync", 0)
    path.unlink()
    path.write_bytes(Manifest(kind="sync", run_id=plan.run_id, iteration=0, content="other weights").to_bytes())

    first, second = looked_at(small)

    assert states(first) == ["committed", "stale", "stale", "stale"]
    assert states(second)[0] == "stale"
    assert "weights changed since" in second.problems[0].reason


def test_an_iteration_alone_is_compared_with_the_manifest_before_it(small: SmallRun) -> None:
    looked_at(small)
    small.run.manifest_path("sync", 0).unlink()

    [second] = looked_at(small, 1)

    assert states(second)[0] == "stale"


def test_another_config_of_the_same_revision_leaves_it_stale(small: SmallRun) -> None:
    looked_at(small)
    path = small.run.config_revision_path(0)
    values = orjson.loads(path.read_bytes())
    values["rollout"]["rollout_temperature"] = 0.5
    path.write_bytes(orjson.dumps(values))

    assert states(looked_at(small)[0])[0] == "stale"


def test_other_code_that_reads_the_config_leaves_no_summary_true(
    small: SmallRun, manifests_read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(small)
    manifests_read.clear()
    monkeypatch.setattr(summary_file, "_config_code", lambda: "other code")

    looked_at(small)

    assert small.run.manifest_path("train", 0) in manifests_read


def test_a_complete_run_is_shown_without_loading_what_reads_configs_and_manifests(small: SmallRun) -> None:
    looked_at(small)
    code = (
        "import sys; from slime_stages.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in ('slime_stages.config', 'slime_stages.run.manifest') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "status", "--run", str(small.run.root)]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "0  2/2 committed" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"seal": "0"}'])
def test_a_summary_that_is_damaged_is_made_again(small: SmallRun, data: bytes) -> None:
    before = looked_at(small)
    path = small.run.summary_path(0)
    whole = path.read_bytes()
    path.write_bytes(data)

    assert looked_at(small) == before
    assert path.read_bytes() == whole


def test_an_altered_summary_is_not_believed(small: SmallRun) -> None:
    before = looked_at(small)
    path = small.run.summary_path(0)
    path.write_bytes(path.read_bytes().replace(b'"samples":8', b'"samples":9'))

    assert looked_at(small) == before


def test_a_run_that_was_moved_names_its_new_place(small: SmallRun) -> None:
    small.run.manifest_path("sync", 1).unlink()
    looked_at(small)
    moved = RunDir(small.run.root.rename(small.run.root.with_name("moved")))

    found = Summaries(moved).overviews([(0, "train"), (1, "train")])

    assert found[1].next_command == f"slime-stages sync --run {moved.root} --iter 1"


def test_what_changed_a_moment_ago_is_not_summarised_yet(small: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "SETTLED_SECONDS", 60.0)

    looked_at(small)

    assert not small.run.summary_path(0).exists()


def test_a_run_that_cannot_be_written_to_is_read(small: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    before = looked_at(small)
    small.run.summary_path(0).unlink()
    monkeypatch.setattr(summary_file, "temporary_name", lambda path: Path("/proc/no/such/folder"))

    assert looked_at(small) == before


def test_evaluations_are_summarised_each_in_its_folder(small: SmallRun, manifests_read: list[Path]) -> None:
    small.evaluate(1, "heldout")

    def look() -> list[IterationOverview]:
        return Summaries(small.run).overviews([(0, "train"), (1, "train"), (1, "heldout")])

    first = look()
    manifests_read.clear()
    assert look() == first
    assert manifests_read == []

    small.run.shard_path("reward", 1, 0, 1, "heldout").unlink()
    assert [part.is_complete for part in look()] == [True, True, False]


def test_who_watches_looks_at_a_complete_iteration_once_in_a_while(small: SmallRun) -> None:
    watching = Summaries(small.run, trust_seconds=300.0)
    parts = [(0, "train"), (1, "train")]
    watching.overviews(parts)
    remove_data(small)

    assert watching.overviews(parts)[0].is_complete
    assert not Summaries(small.run).overviews(parts)[0].is_complete


def test_where_every_look_is_slow_many_look_at_once(small: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    before = looked_at(small)
    monkeypatch.setattr(looks, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(looks, "SLOW_LOOKS", 1)

    assert looked_at(small) == before

    cut_data(small)
    assert [overview.is_complete for overview in looked_at(small)] == [False, True]

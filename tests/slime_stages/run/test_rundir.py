"""The run directory: its paths, its identity, and which run is meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.run.rundir import RunDir, find_run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIME_RUN", raising=False)


def made(path: str) -> RunDir:
    run = RunDir(Path(path).absolute())
    run.create()
    return run


def test_paths_sort_by_number_and_evaluations_have_their_own_folder() -> None:
    run = RunDir(Path("R"))

    assert str(run.shard_path("rollout", 12, 3, 8)) == "R/iterations/000012/rollout/shard-00003-of-00008.parquet"
    assert str(run.manifest_path("reward", 12, 3, 8)) == "R/iterations/000012/reward/shard-00003-of-00008.json"
    assert str(run.manifest_path("train", 12)) == "R/iterations/000012/train/manifest.json"
    assert str(run.stage_path("rollout", 12, "gsm8k")) == "R/iterations/000012/eval/gsm8k/rollout"
    assert str(run.plan_path(12)) == "R/iterations/000012/plan.json"
    assert str(run.journal_path(12, 3)) == "R/iterations/000012/rollout/.journal-00003"
    assert str(run.weights_path(13)) == "R/weights/000013"


def test_a_run_keeps_the_identity_it_was_made_with() -> None:
    run = RunDir(Path("runs/first"))
    assert not run.exists()

    identity = run.create()

    assert identity.startswith("first-")
    assert run.create() == run.run_id() == identity


def test_a_folder_with_something_else_in_it_does_not_become_a_run(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()

    with pytest.raises(UsageError, match=r"home is no run and not empty \(thesis.tex\)") as caught:
        RunDir(tmp_path / "home").create()

    assert (caught.value.exit_code, caught.value.hint) == (2, "choose another --run folder")


def test_iterations_are_the_numbered_folders_in_order() -> None:
    run = made("runs/first")
    assert run.iterations() == []

    for name in ("000010", "000002", "notes"):
        (run.iterations_path / name).mkdir(parents=True)

    assert run.iterations() == [2, 10]


def test_the_run_given_comes_before_the_environment_and_that_before_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = made("runs/only")
    assert find_run(None).root == only.root

    other, third = made("elsewhere/other"), made("elsewhere/third")
    monkeypatch.setenv("SLIME_RUN", "elsewhere/other")
    assert find_run(None).root == other.root
    assert find_run(Path("elsewhere/third")).root == third.root


def test_no_run_at_all_says_how_to_make_one() -> None:
    with pytest.raises(MissingInputError, match="there is no run below runs/") as caught:
        find_run(None)

    assert caught.value.hint == "slime-stages init --run runs/NAME --config FILE"


def test_several_runs_are_listed_and_one_must_be_named() -> None:
    made("runs/a")
    made("runs/b")

    with pytest.raises(UsageError, match=re.escape("there are 2 runs (runs/a, runs/b)")) as caught:
        find_run(None)

    assert caught.value.hint == "add --run runs/a, or set SLIME_RUN"


def test_a_folder_that_is_no_run_says_how_to_make_it_one(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"nowhere is no run: it has no run\.json") as caught:
        find_run(Path("nowhere"))

    assert caught.value.hint == f"slime-stages init --run {tmp_path / 'nowhere'} --config CONFIG.toml"


def test_a_run_of_a_newer_version_or_with_half_an_identity_is_refused() -> None:
    run = made("runs/first")

    run.identity_path.write_text('{"run_id": "first", "version": 2}')
    with pytest.raises(DataError, match="a run of version 2; this works on 1"):
        run.run_id()
    run.identity_path.write_text('{"run_id"')
    with pytest.raises(DataError, match="is not whole"):
        run.run_id()


def test_a_lost_or_altered_identity_is_read_from_the_plans() -> None:
    run = made("runs/first")
    identity = run.run_id()
    run.plan_path(0).parent.mkdir(parents=True)
    run.plan_path(0).write_text(f'{{"run_id": "{identity}"}}')

    run.identity_path.unlink()
    assert run.recover()
    assert run.run_id() == identity
    run.identity_path.write_bytes(run.identity_path.read_bytes().replace(b"first-", b"other-"))
    assert run.recover()
    assert run.run_id() == identity


def test_an_identity_is_not_made_up_and_that_of_a_newer_version_is_left_alone() -> None:
    run = made("runs/first")
    newer = b'{"run_id": "first", "version": 2}'
    run.plan_path(0).parent.mkdir(parents=True)
    run.plan_path(0).write_text('{"run_id": "first-1"}')

    run.identity_path.write_bytes(newer)
    assert run.recover()
    assert run.identity_path.read_bytes() == newer
    run.plan_path(0).unlink()
    run.identity_path.unlink()
    assert not run.recover()


def test_what_a_killed_start_leaves_behind_does_not_keep_a_run_from_being_made() -> None:
    Path("first").mkdir()
    Path("first/.tmp-host-1-0000000000000000-config.json.part").write_text("{")

    assert made("first").run_id().startswith("first-")

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.digest import digest_file
from slime_stages.weights.checkpoints import (
    MODEL,
    OPTIMIZER,
    CheckpointRecord,
    advance_tracker,
    check_checkpoint,
    find_weights,
    has_weights,
    is_complete,
    iteration_folder,
    latest_iteration,
    prune_checkpoints,
    verify_checkpoint,
    write_record,
    write_tracker,
)


def make_checkpoint(folder: Path, iteration: int, *parts: str) -> Path:
    checkpoint = iteration_folder(folder, iteration)
    checkpoint.mkdir(parents=True)
    (checkpoint / "__0_0.distcp").write_bytes(b"12345")
    record = CheckpointRecord(iteration=iteration, parts=list(parts), layout={}, file_bytes={"__0_0.distcp": 5})
    write_record(checkpoint, record)
    return checkpoint


def numbers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_a_checkpoint_is_complete_once_the_optimizer_has_joined_the_model(tmp_path: Path) -> None:
    early = make_checkpoint(tmp_path, 13, MODEL)
    whole = make_checkpoint(tmp_path, 14, MODEL, OPTIMIZER)

    assert early == tmp_path / "iter_0000013"
    assert (has_weights(early), is_complete(early)) == (True, False)
    assert (has_weights(whole), is_complete(whole)) == (True, True)


def test_a_checkpoint_that_megatron_wrote_is_complete_with_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "iter_0000001").mkdir()
    assert latest_iteration(tmp_path) is None

    (tmp_path / "iter_0000001" / "metadata.json").write_text("{}")

    assert latest_iteration(tmp_path) == 1


def test_the_latest_iteration_is_the_trackers_if_that_is_complete(tmp_path: Path) -> None:
    assert latest_iteration(tmp_path) is None
    for iteration in (1, 2, 3):
        make_checkpoint(tmp_path, iteration, MODEL, OPTIMIZER)
    make_checkpoint(tmp_path, 4, MODEL)

    assert latest_iteration(tmp_path) == 3
    write_tracker(tmp_path, 2)
    assert latest_iteration(tmp_path) == 2
    write_tracker(tmp_path, 4)
    assert latest_iteration(tmp_path) == 3


def test_the_tracker_goes_on_to_an_iteration_that_is_about_to_be_complete_but_not_back(tmp_path: Path) -> None:
    advance_tracker(tmp_path, 1)
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "1"
    make_checkpoint(tmp_path, 2, MODEL, OPTIMIZER)
    write_tracker(tmp_path, 2)

    advance_tracker(tmp_path, 1)
    assert latest_iteration(tmp_path) == 2
    advance_tracker(tmp_path, 3)
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "3"


def test_pruning_counts_complete_checkpoints_and_removes_incomplete_ones_older_than_the_newest(tmp_path: Path) -> None:
    for iteration in (1, 2, 4, 5, 6):
        make_checkpoint(tmp_path, iteration, MODEL, OPTIMIZER)
    make_checkpoint(tmp_path, 3, MODEL)
    make_checkpoint(tmp_path, 7, MODEL)

    removed = prune_checkpoints(tmp_path, 2, 4, {1})

    assert sorted(path.name for path in removed) == ["iter_0000002", "iter_0000003"]
    assert numbers(tmp_path) == [f"iter_000000{iteration}" for iteration in (1, 4, 5, 6, 7)]


def test_what_is_missing_in_a_checkpoint_is_named(tmp_path: Path) -> None:
    early = make_checkpoint(tmp_path, 13, MODEL)

    check_checkpoint(early)
    with pytest.raises(MissingInputError, match="iter_0000013 is without its optimizer state"):
        check_checkpoint(early, part=OPTIMIZER)
    with pytest.raises(MissingInputError, match="iter_0000099 is missing"):
        check_checkpoint(tmp_path / "iter_0000099")
    (early / "__0_0.distcp").write_bytes(b"123")
    with pytest.raises(DataError, match=r"__0_0.distcp has 3 bytes, 5 were written"):
        check_checkpoint(early)


def test_an_altered_file_is_refused_by_whoever_reads_its_share(tmp_path: Path) -> None:
    checkpoint = iteration_folder(tmp_path, 1)
    checkpoint.mkdir()
    for name in ("__0_0.distcp", "optimizer__0_1.distcp"):
        (checkpoint / name).write_bytes(b"12345")
    digests = {path.name: digest_file(path) for path in checkpoint.iterdir()}
    parts = [MODEL, OPTIMIZER]
    write_record(checkpoint, CheckpointRecord(iteration=1, parts=parts, layout={}, file_bytes={}, digests=digests))

    (checkpoint / "optimizer__0_1.distcp").write_bytes(b"12346")

    verify_checkpoint(checkpoint, part=MODEL)
    verify_checkpoint(checkpoint, part=OPTIMIZER, share=(0, 2))
    with pytest.raises(DataError, match=r"optimizer__0_1\.distcp was altered"):
        verify_checkpoint(checkpoint, part=OPTIMIZER, share=(1, 2))


def test_a_checkpoint_with_a_broken_record_is_not_complete_and_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 1, MODEL, OPTIMIZER)
    record = checkpoint / "checkpoint.json"

    record.write_bytes(record.read_bytes().replace(b'"model"', b'"modal"'))

    assert not is_complete(checkpoint)
    with pytest.raises(DataError, match="was altered"):
        check_checkpoint(checkpoint)


def test_the_weights_that_a_person_means_are_the_folder_s_own_or_the_step_s_or_the_newest(tmp_path: Path) -> None:
    for iteration, parts in {1: (MODEL, "optimizer"), 2: (MODEL, "optimizer"), 3: (MODEL,)}.items():
        (make_checkpoint(tmp_path, iteration, *parts) / ".metadata").touch()

    assert find_weights(tmp_path) == iteration_folder(tmp_path, 2)
    assert find_weights(tmp_path, 3) == iteration_folder(tmp_path, 3)
    assert find_weights(iteration_folder(tmp_path, 1)) == iteration_folder(tmp_path, 1)
    with pytest.raises(MissingInputError, match="no whole checkpoint of iteration 9"):
        find_weights(tmp_path, 9)


def test_converted_weights_are_found_where_training_has_left_none(tmp_path: Path) -> None:
    release = make_checkpoint(tmp_path, 0, MODEL).rename(tmp_path / "release")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")

    assert find_weights(tmp_path) == release

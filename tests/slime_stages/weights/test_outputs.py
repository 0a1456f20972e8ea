"""What train and sync leave beside their manifests: missed where it is needed, and not where retention removed it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.manifest import Manifest
from slime_stages.run.rundir import RunDir
from slime_stages.weights.checkpoints import (
    MODEL,
    OPTIMIZER,
    CheckpointRecord,
    critic_checkpoints,
    iteration_folder,
    write_record,
)
from slime_stages.weights.outputs import check_outputs, is_past_repair
from slime_stages.weights.publish import finish_folder, unpublished_folder


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Checkpoints 1 to 3 and weights 0 to 3."""
    run = RunDir(tmp_path / "run")
    for version in range(4):
        publish(run, version)
    for iteration in range(1, 4):
        folder = iteration_folder(run.checkpoints_path, iteration)
        folder.mkdir(parents=True)
        record = CheckpointRecord(iteration=iteration, parts=[MODEL, OPTIMIZER], layout={}, file_bytes={})
        write_record(folder, record)
    return run


def publish(run: RunDir, version: int, weights: bytes = b"weights") -> str:
    target = run.weights_path(version)
    with unpublished_folder(target) as folder:
        (folder / "model.safetensors").write_bytes(weights)
        digest = finish_folder(folder, version).digest
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    return digest


def made(kind: str, iteration: int, content: str = "") -> Manifest:
    return Manifest(kind=kind, run_id="run-1", iteration=iteration, policy_version=iteration, content=content)


def test_a_checkpoint_is_missed_only_while_it_is_the_newest(run: RunDir) -> None:
    shutil.rmtree(iteration_folder(run.checkpoints_path, 1))
    check_outputs(run, made("train", 0))

    shutil.rmtree(iteration_folder(run.checkpoints_path, 3))
    with pytest.raises(MissingInputError, match="iter_0000003 is missing"):
        check_outputs(run, made("train", 2))


def test_the_checkpoint_of_a_critic_is_missed_too(run: RunDir) -> None:
    critics = critic_checkpoints(run.checkpoints_path)
    shutil.copytree(iteration_folder(run.checkpoints_path, 3), iteration_folder(critics, 3))
    trained = made("train", 2)
    with_critic = trained.model_copy(update={"outputs": {"critic_content": "c0ffee"}})
    check_outputs(run, with_critic)

    shutil.rmtree(iteration_folder(critics, 3))
    check_outputs(run, trained)
    with pytest.raises(MissingInputError, match="critic/iter_0000003 is missing"):
        check_outputs(run, with_critic)


def test_a_checkpoint_that_has_lost_its_record_is_refused(run: RunDir) -> None:
    folder = iteration_folder(run.checkpoints_path, 2)
    (folder / "checkpoint.json").unlink()
    (folder / "metadata.json").write_text("{}")

    with pytest.raises(MissingInputError, match=r"has lost its checkpoint\.json"):
        check_outputs(run, made("train", 1))


def test_the_checkpoint_of_another_attempt_than_the_committed_one_is_refused(run: RunDir) -> None:
    folder = iteration_folder(run.checkpoints_path, 3)
    parts = [MODEL, OPTIMIZER]
    write_record(folder, CheckpointRecord(iteration=3, parts=parts, layout={}, file_bytes={}, content="other"))

    with pytest.raises(DataError, match="holds parameters with digest other, ours were committed"):
        check_outputs(run, made("train", 2, "ours"))


def test_weights_are_missed_only_while_they_are_the_newest_and_are_the_committed_ones(run: RunDir) -> None:
    digest = publish(run, 3, b"newest")
    check_outputs(run, made("sync", 2, digest))
    with pytest.raises(DataError, match="another were committed"):
        check_outputs(run, made("sync", 2, "another"))

    shutil.rmtree(run.weights_path(1))
    check_outputs(run, made("sync", 0))
    shutil.rmtree(run.weights_path(3))
    with pytest.raises(MissingInputError, match="000003 are missing"):
        check_outputs(run, made("sync", 2))


def test_only_a_past_output_whose_origin_retention_has_removed_is_past_repair(run: RunDir) -> None:
    assert not any(is_past_repair(run, stage, 1) for stage in ("rollout", "reward", "train", "sync"))

    shutil.rmtree(run.weights_path(1))
    shutil.rmtree(iteration_folder(run.checkpoints_path, 1))

    assert [is_past_repair(run, stage, 1) for stage in ("rollout", "reward", "train", "sync")] == [
        True,
        False,
        True,
        False,
    ]
    assert not is_past_repair(run, "train", 2)


def test_the_checkpoint_and_the_weights_to_look_for_are_the_trained_ones_whatever_generated(run: RunDir) -> None:
    digest = publish(run, 3, b"newest")
    late = made("sync", 2, digest).model_copy(update={"policy_version": 1})

    check_outputs(run, late)
    shutil.rmtree(iteration_folder(run.checkpoints_path, 3))

    with pytest.raises(MissingInputError, match="iter_0000003 is missing"):
        check_outputs(run, late.model_copy(update={"kind": "train"}))


def test_a_rollout_that_is_still_to_be_trained_on_is_not_past_because_newer_weights_are_there(run: RunDir) -> None:
    shutil.rmtree(run.weights_path(1))

    assert not is_past_repair(run, "rollout", 3, generated_with=1)
    assert is_past_repair(run, "rollout", 2, generated_with=1)
    assert not is_past_repair(run, "rollout", 2, generated_with=2)

"""Whether what train and sync have made beside their manifests is whole: a checkpoint, a version of the weights.

What retention has removed is not missed: there is a newer one then.
"""

from __future__ import annotations

from pathlib import Path

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.manifest import Manifest
from slime_stages.run.rundir import RunDir
from slime_stages.weights.checkpoints import (
    CRITIC_CONTENT,
    OPTIMIZER,
    RECORD,
    check_content,
    complete_iterations,
    critic_checkpoints,
    has_weights,
    is_complete,
    iteration_folder,
    read_record,
    verify_checkpoint,
)
from slime_stages.weights.folders import has_live_writer
from slime_stages.weights.publish import published_versions, verify_weights


def check_outputs(run: RunDir, manifest: Manifest) -> None:
    """Refuse outputs of a committed call that are lost or altered. Reads them whole."""
    version = manifest.iteration + 1
    if manifest.kind == "train":
        _check_checkpoint(run.checkpoints_path, version, manifest.content)
        if critic := manifest.outputs.get(CRITIC_CONTENT):
            _check_checkpoint(critic_checkpoints(run.checkpoints_path), version, critic)
    elif manifest.kind == "sync":
        _check_weights(run, version, manifest.content)


def is_past_repair(run: RunDir, stage: str, version: int, *, generated_with: int | None = None) -> bool:
    """Whether an output of a past iteration, whose training started from `version`, cannot be made again.

    Retention has removed what it would be made from; nothing that is to come needs it either. `generated_with` is the
    version of the weights that its samples come from, if another one.
    """
    weights = run.weights_path(version if generated_with is None else generated_with)
    newest_weights = max(published_versions(weights.parent), default=0)
    newest_checkpoint = max(complete_iterations(run.checkpoints_path), default=0)
    if stage == "rollout":
        return newest_weights > version and not weights.exists()
    if stage == "train":
        start = iteration_folder(run.checkpoints_path, version)
        return newest_checkpoint > version + 1 and version > 0 and not is_complete(start)
    if stage == "sync":
        trained = iteration_folder(run.checkpoints_path, version + 1)
        return newest_weights > version + 1 and not has_weights(trained)
    return False


def _check_checkpoint(checkpoints: Path, version: int, content: str) -> None:
    folder = iteration_folder(checkpoints, version)
    is_superseded = max(complete_iterations(checkpoints), default=0) > version
    if (is_superseded and not folder.exists()) or (has_live_writer(folder) and not is_complete(folder)):
        return
    verify_checkpoint(folder, part=OPTIMIZER)
    check_content(folder, content)
    if read_record(folder) is None:
        raise MissingInputError(f"checkpoint {folder} has lost its {RECORD}")


def _check_weights(run: RunDir, version: int, content: str) -> None:
    folder = run.weights_path(version)
    if not folder.exists() and max(published_versions(folder.parent), default=0) > version:
        return
    if (found := verify_weights(folder).digest) != content:
        raise DataError(f"weights {folder} have digest {found}, {content} were committed")

"""A checkpoint on its way to the disk and to its place; `checkpoint.py` says in which steps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed
from megatron.core import dist_checkpointing, parallel_state

from slime_stages.errors import InternalError, SlimeStagesError
from slime_stages.run.commit import discard_folder, has_inode, is_listed
from slime_stages.run.digest import digest_file
from slime_stages.weights.checkpoints import (
    METADATA,
    MODEL,
    OPTIMIZER,
    RECORD,
    CheckpointRecord,
    advance_tracker,
    write_record,
    write_tracker,
)
from slime_stages.weights.folders import fsync_folder, replace_folder
from stages.train.megatron.async_writer import PARTS, Plan, PlanningStrategy, Writer, WrittenFile, write_metadata

COMMON_FILES = ["common.pt", "metadata.json"]
"""Megatron's own, beside the data: what is no tensor, and the format."""


class PendingSave:
    """A save on its way to the disk. Its methods are collective: all ranks call them, in the same order."""

    def __init__(
        self, target: Path, iteration: int, strategy: PlanningStrategy, plan: Plan, *, background: bool
    ) -> None:
        self.target = target
        """Where the folder belongs."""
        self._iteration = iteration
        self._strategy = strategy
        self._folders = plan.folders
        self._finished: list[str] = []
        self._descriptor = self._inode = -1
        self._results: list[Any] = []
        self._sizes: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._content = ""
        self._writer = Writer(plan, background=background)

    def prepare(self, content: str = "", *, whole: bool) -> Path:
        """Return the temporary folder once all of the checkpoint is in it, or the model's weights if not `whole`.

        `content` is the digest of the weights. The folder may be put in its place before or after.
        """
        self._content = self._content or content
        for part in PARTS if whole else (MODEL,):
            if part not in self._finished:
                self._finish_part(part)
        return self._folders[MODEL]

    def wait_for_weights(self, content: str = "") -> Path:
        """Return the checkpoint's folder once it is in its place, whatever lay there, and has the model's weights."""
        temporary = self.prepare(content, whole=False)
        if torch.distributed.get_rank() == 0 and temporary.exists():
            replace_folder(temporary, self.target)
        torch.distributed.barrier()
        return self.target

    def wait(self) -> Path:
        """Return the checkpoint's folder once it is complete in its place and named by the tracker."""
        self.wait_for_weights()
        self.finish()
        return self.target

    def finish(self) -> None:
        """Complete the folder where it is by now, in its place, and have the tracker name it."""
        self.prepare(whole=True)
        if torch.distributed.get_rank() == 0 and self.is_in_place():
            write_tracker(self.target.parent, self._iteration)

    @property
    def is_whole(self) -> bool:
        return OPTIMIZER in self._finished

    def is_in_place(self) -> bool:
        """Whether this save's folder is the one in its place; only the first rank knows."""
        return is_listed(self.target) and has_inode(self.target, self._inode)

    def abandon(self) -> None:
        """Stop and delete what was written, on this rank, which is the only one or whose others have finished."""
        self._writer.stop()
        for path in self._folders.values():
            discard_folder(path)

    def _finish_part(self, part: str) -> None:
        outcome = self._writer.outcome(part)
        gathered: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(gathered, outcome)
        errors = [each for each in gathered if isinstance(each, Exception)]
        if errors:
            self._abandon()
            raise _worst(errors)
        if torch.distributed.get_rank() == 0:
            written = [file for files in gathered for file in files]
            self._results += [result for file in written for result in file.results]
            write_metadata(self._folders[part], self._strategy, self._results)
            (self._finish_model if part == MODEL else self._finish_optimizer)(written)
        self._finished.append(part)
        torch.distributed.barrier()

    def _finish_model(self, written: list[WrittenFile]) -> None:
        folder = self._folders[MODEL]
        config = dist_checkpointing.core.CheckpointingConfig("torch_dist", 1)
        dist_checkpointing.core.save_config(config, str(folder))
        self._measure(folder, written, COMMON_FILES)
        write_record(folder, self._record([MODEL]))
        fsync_folder(folder, already_durable=[file.name for file in written])
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # stays open: no other gets this inode
        self._inode = os.fstat(self._descriptor).st_ino

    def _finish_optimizer(self, written: list[WrittenFile]) -> None:
        folder = self._folders[OPTIMIZER]
        self._measure(folder, written, [METADATA])
        write_record(folder, self._record([MODEL, OPTIMIZER]))
        try:
            for name in [*(file.name for file in written), METADATA]:
                self._join(folder / name)
            advance_tracker(self.target.parent, self._iteration)
            self._join(folder / RECORD)
        except OSError:
            if self.is_in_place() or self._folders[MODEL].exists():
                raise
            self.abandon()  # the folder was replaced since, by another attempt at the iteration, and nobody needs it
        else:
            folder.rmdir()

    def _join(self, path: Path) -> None:
        """Move a file into the folder of the model's weights, and make that durable before anything else is."""
        os.rename(path, path.name, dst_dir_fd=self._descriptor)
        os.fsync(self._descriptor)

    def _measure(self, folder: Path, written: list[WrittenFile], names: list[str]) -> None:
        """Note sizes and digests for the record; of `.metadata` once that is not going to be replaced any more."""
        digests = {file.name: file.digest for file in written}
        for name in [*digests, *names]:
            self._sizes[name] = (folder / name).stat().st_size
            self._digests[name] = digests.get(name) or digest_file(folder / name)

    def _record(self, parts: list[str]) -> CheckpointRecord:
        return CheckpointRecord(
            iteration=self._iteration,
            parts=parts,
            layout=parallel_layout(),
            file_bytes=dict(sorted(self._sizes.items())),
            digests=dict(sorted(self._digests.items())),
            content=self._content,
        )

    def _abandon(self) -> None:
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            for path in self._folders.values():
                shutil.rmtree(path, ignore_errors=True)


def parallel_layout() -> dict[str, int]:
    """Sizes of the parallel groups of this process."""
    return {
        "tensor": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
        "context": parallel_state.get_context_parallel_world_size(),
        "expert": parallel_state.get_expert_model_parallel_world_size(),
        "data": parallel_state.get_data_parallel_world_size(),
    }


def _worst(errors: list[Exception]) -> Exception:
    known = [error for error in errors if isinstance(error, SlimeStagesError)]
    return known[0] if known else InternalError(f"cannot write the checkpoint: {errors[0]!r}")

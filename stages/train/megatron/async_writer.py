"""Write a planned torch_dist checkpoint, the model's weights before the optimiser's state, here or in a forked process.

Megatron-Core plans what each rank writes and gives the format. Its own writer starts a manager process, which imports
the caller's main module again (seconds), and a process per file; here one fork writes this rank's files one after the
other, and no process is started at all for a save in the foreground.
"""

from __future__ import annotations

import errno
import multiprocessing
import pickle
import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.metadata import Metadata

from slime_stages.errors import InternalError, RetryableError
from slime_stages.run.commit import fsync_path
from slime_stages.run.digest import digest_file
from slime_stages.weights.checkpoints import MODEL, OPTIMIZER

PARTS = (MODEL, OPTIMIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One data file of a checkpoint."""

    name: str

    digest: str
    """xxh3-128 of its content, in hex."""

    results: list[Any]
    """What it holds, in torch's terms."""


Outcome = list[WrittenFile] | Exception
"""What this rank has written of a part, or why it could not."""

Report = Callable[[str, Outcome], None]
"""Takes a part and its outcome."""


class PlanningStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's save strategy up to the plan: what this rank writes stays in `buckets`, for us to write."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1, thread_count=2, separation_hint=OPTIMIZER)
        if filesystem_async._results_queue is None:
            filesystem_async._results_queue = queue.SimpleQueue()  # otherwise a manager process is started for one
        self.metadata: Metadata | None = None
        """What the whole checkpoint holds; on rank 0."""

        self.writer: Any = None
        """Megatron's writer, which knows the files' format."""

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        self.writer, self.metadata, _ = save_state_dict_ret
        return super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)


def split_buckets(request: Any) -> dict[str, list[Any]]:
    """This rank's write buckets by part, in host memory."""
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    if request.preload_fn is not None:
        for bucket in request.preload_fn():
            parts[OPTIMIZER if bucket[1].startswith(OPTIMIZER) else MODEL].append(bucket)
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The files that this rank writes."""

    buckets: dict[str, list[Any]]
    """By part: Megatron's write buckets, one a file."""

    folders: dict[str, Path]
    """By part: where its files go."""

    transforms: Any
    """How torch encodes a tensor in a file."""


class Writer:
    """Writes the parts in order and hands out each part's outcome as soon as its files are durable."""

    def __init__(self, plan: Plan, *, background: bool) -> None:
        self._plan = plan
        self._process: Any = None
        self._told: queue.SimpleQueue[tuple[str, Outcome] | None] = queue.SimpleQueue()
        self._outcomes: dict[str, Outcome] = {}
        if background:
            self._fork()
        else:
            write_parts(plan, self._outcomes.__setitem__)

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=self._run, args=(receiver, sender), name="checkpoint-writer")
        self._process.start()
        sender.close()
        # a pipe holds little: without a reader the writer would stand still until somebody waits for it
        threading.Thread(target=self._receive, args=(receiver,), daemon=True).start()

    def _receive(self, receiver: Any) -> None:
        with receiver, suppress(EOFError):
            while True:
                self._told.put(receiver.recv())
        self._told.put(None)

    def _run(self, receiver: Any, sender: Any) -> None:
        receiver.close()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # a parent that is told to stop still waits for its checkpoint
        with suppress(BrokenPipeError):  # the parent is gone, and with it whoever could commit
            write_parts(self._plan, lambda part, outcome: sender.send((part, outcome)))

    def outcome(self, part: str) -> Outcome:
        """What became of a part; waits until it is on disk or has failed."""
        while part not in self._outcomes:
            told = self._told.get()
            if told is None:
                self._process.join()
                return InternalError(f"the checkpoint writer died with exit code {self._process.exitcode}")
            self._outcomes[told[0]] = told[1]
        if part == PARTS[-1] and self._process is not None:
            self._process.join()
        return self._outcomes[part]

    def stop(self) -> None:
        """End the process that writes, if there is one: nobody needs what it still would write."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def write_parts(plan: Plan, report: Report) -> None:
    """Write and fsync all files of each part, then report it; after a failure all that follows fails too."""
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)  # half of the processor time, and nothing reads them
    failure: Exception | None = None
    for part in PARTS:
        try:
            written = [] if failure else [_write(bucket, plan, part) for bucket in plan.buckets[part]]
        except Exception as error:  # whatever it is, the other ranks must hear of it or they would wait for ever
            failure = error
        report(part, failure or written)
    torch.serialization.set_crc32_options(checksums)


def _write(bucket: Any, plan: Plan, part: str) -> WrittenFile:
    _, name, data = bucket
    folder = plan.folders[part].parent
    path = plan.folders[part] / name
    outcome: list[Any] = []
    unused = SimpleNamespace(get=lambda: None, task_done=lambda: None)
    FileSystemWriterAsync.write_preloaded_data(
        [plan.transforms], 0, (str(path), name, data), SimpleNamespace(put=outcome.append), unused, use_fsync=True
    )
    _, results = outcome[0]
    if isinstance(results, OSError) and results.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise RetryableError(
            f"no space left to write {path.name} in {folder}",
            hint=f"df -h {folder}; free some space and type the same command again: what is committed stays",
        ) from results
    if isinstance(results, Exception):
        raise InternalError(f"cannot write {path}: {results}") from results
    return WrittenFile(name=name, digest=digest_file(path), results=list(results))


def write_metadata(folder: Path, strategy: PlanningStrategy, results: list[Any]) -> None:
    """Describe what `results` have written, as one torch_dist checkpoint, in the folder's `.metadata`."""
    assert strategy.metadata is not None
    written = {result.index.fqn for result in results}
    entries = strategy.metadata.state_dict_metadata
    metadata = replace(
        strategy.metadata,
        state_dict_metadata={name: entry for name, entry in entries.items() if name in written},
        storage_data={result.index: result.storage_data for result in results},
        storage_meta=strategy.writer.storage_meta(),
    )
    path = folder / ".metadata"
    with path.open("wb") as file:
        pickle.dump(metadata, file)
    fsync_path(path)

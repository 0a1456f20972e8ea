"""The processes that train together: how they find each other, and how the end of one becomes the end of all.

They share a folder. The first of them says there where it listens, on a port that the system has given it, or that
there is nothing to do; whichever fails first says why, so that all end with its error and none waits for the dead.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from slime_stages.drain import Drained, disregard_signals
from slime_stages.errors import InternalError, RetryableError, SlimeStagesError
from slime_stages.run.commit import create_file, replace_file
from slime_stages.stage import say

MEETING, ERROR, NOTICED = "meeting.json", "error.json", "noticed"
MEETING_SECONDS = 1800.0
"""How long the first one may take to look at what is committed, which it may have to read whole."""
TELLING_SECONDS = 5.0
"""How soon a process that takes others down with it has said why."""
POLL_SECONDS = 0.1

T = TypeVar("T")


class Ranks:
    """This process among those that train together."""

    def __init__(self, folder: Path, *, rank: int, local_rank: int, count: int, host: str) -> None:
        """`folder` is seen by all, and is of this attempt alone; beside it are those of earlier attempts at most.

        `host` is how the others find this one's node.
        """
        self.folder, self.host = folder, host
        self.rank, self.local_rank, self.count = rank, local_rank, count
        self._store: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def invite(self, *, is_needed: bool) -> None:
        """Called by the first one, once it knows whether there is anything to do: the others go on."""
        meeting: dict[str, Any] = {"is_needed": is_needed}
        if is_needed:
            self._store = _parallel().open_store(self.host)
            meeting |= {"host": self.host, "port": self._store.port}
        replace_file(self.folder / MEETING, orjson.dumps(meeting))

    def is_invited(self) -> bool:
        """What the first one has said, for the others. Raises its error, or RetryableError if it says nothing."""
        deadline = time.monotonic() + MEETING_SECONDS
        while not (self.folder / MEETING).exists():
            if (error := read_error(self.folder)) is not None:
                raise error
            if time.monotonic() > deadline:
                raise RetryableError(
                    f"the first of {self.count} trainer processes said nothing for {MEETING_SECONDS:.0f} s",
                    hint=f"its log says why; {self.folder} must lie on storage that all nodes share",
                )
            _look_again(self.folder)
        meeting = orjson.loads((self.folder / MEETING).read_bytes())
        if meeting["is_needed"]:
            self._store = _parallel().open_store(meeting["host"], port=meeting["port"])
        return bool(meeting["is_needed"])

    def join(self) -> None:
        """Form the process group; returns when all have come."""
        _parallel().join(self._store, rank=self.rank, count=self.count, local_rank=self.local_rank)

    @contextmanager
    def sharing_errors(self) -> Iterator[None]:
        """What ends this process ends the others, and all with the error that was told first.

        Once the first process knows of it, it carries the exit code alone, and the block ends quietly elsewhere: at
        the first exit code that is not 0 srun terminates all others, the one that sees to the rest among them.
        """
        try:
            yield
        except Drained as error:
            tell_error(self.folder, error)
            told = read_error(self.folder)
            self._end_with(error if told is None or isinstance(told, RetryableError) else told)
        except SlimeStagesError as error:
            tell_error(self.folder, error)
            self._end_with(error)
        except Exception as error:
            told = self._wait_for(lambda: read_error(self.folder))
            if told is None:
                tell_error(self.folder, InternalError(f"trainer process {self.rank}: {type(error).__name__}: {error}"))
            self._end_with(told or error)

    def _end_with(self, error: BaseException) -> None:
        """Raise it, unless the first process does."""
        if not isinstance(error, Drained | RetryableError):
            disregard_signals()
        known = self.folder / NOTICED
        if self.is_first:
            known.touch()
        elif self._wait_for(known.exists):
            disregard_signals()  # of srun, which ends the others once the first one has ended
            say(f"trainer process {self.rank} ends with the first one: {error}")
            return
        raise error

    def _wait_for(self, found: Callable[[], T]) -> T:
        """What is found, or at last what is not."""
        deadline = time.monotonic() + TELLING_SECONDS
        while not (value := found()) and time.monotonic() < deadline:
            _look_again(self.folder)
        return value

    def leave(self) -> None:
        """Called once nobody needs the folder any more, nor those of earlier attempts beside it."""
        if self.is_first:
            shutil.rmtree(self.folder.parent, ignore_errors=True)


def tell_error(folder: Path, error: SlimeStagesError | Drained) -> None:
    """Say why this process ends, unless another one has said so already."""
    known = RetryableError(error.message) if isinstance(error, Drained) else error
    told = {"exit_code": known.exit_code, "message": known.message, "hint": known.hint}
    folder.mkdir(parents=True, exist_ok=True)
    create_file(folder / ERROR, orjson.dumps(told))


def read_error(folder: Path) -> SlimeStagesError | None:
    """What the first process that failed has told."""
    try:
        told = orjson.loads((folder / ERROR).read_bytes())
    except FileNotFoundError:
        return None
    return SlimeStagesError.with_exit_code(told["exit_code"], told["message"], hint=told["hint"])


def _parallel() -> Any:
    from stages.train.megatron import parallel  # with torch, which a call that has nothing to do need not load

    return parallel


def _look_again(folder: Path) -> None:
    """Listing a folder renews what a network file system believes of it."""
    time.sleep(POLL_SECONDS)
    if folder.exists():
        os.listdir(folder)

"""Run one stage call: in this process, or in a fork of a process that has the imports behind it."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_stages.drain import Drained, drain_reason, install_drain
from slime_stages.errors import DataError, MissingInputError, RetryableError, SlimeStagesError, UsageError
from slime_stages.lineage import command
from slime_stages.plugins import load_function
from slime_stages.run.rundir import RunDir, program_of
from slime_stages.stage import StageCall

PROGRAMS = {
    "rollout": "stages.rollout.run:run",
    "reward": "stages.reward.run:run",
    "train": "stages.train.run:run",
    "sync": "stages.sync.run:run",
    "serve": "slime_stages.launch.serve:serve_call",
}
"""The stage programs, by name only: nothing here imports them. `serve` makes nothing, and keeps engines."""

PASSIVE_WAIT = ("OMP_WAIT_POLICY", "PASSIVE")
"""OpenMP threads that spin at a barrier starve each other on a busy node; read when torch is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How a stage call ended."""

    exit_code: int
    manifest: str = ""
    message: str = ""
    hint: str | None = None

    def to_json(self) -> bytes:
        return orjson.dumps({name: getattr(self, name) for name in self.__slots__})


def run_stage(call: StageCall) -> Path:
    """Do the work here and now; returns the path of the committed manifest.

    RetryableError if a signal ended it, or if something failed after one: helpers get the signals of a job as well.
    """
    os.environ.setdefault(*PASSIVE_WAIT)
    try:
        install_drain()
        if reason := drain_reason():
            raise Drained(reason)
        path = load_function(PROGRAMS[program_of(call.stage)])(call)
    except Drained as drained:
        raise RetryableError(drained.message, hint=_command(call)) from drained
    except (UsageError, DataError, MissingInputError):
        raise
    except Exception as error:
        if (reason := drain_reason()) is None:
            raise
        raise RetryableError(f"drained ({reason}): {type(error).__name__}: {error}", hint=_command(call)) from error
    assert isinstance(path, Path)
    return path


def _command(call: StageCall) -> str:
    words = command(RunDir(call.run), call.stage, call.iteration, call.shard)
    return words if call.split == "train" else f"{words} --eval {call.split}"


def result_of(call: StageCall) -> StageResult:
    """The same, with every error turned into an exit code and a message. Unexpected ones also print their trace.

    75 after a signal that drains, as Ctrl-C does; 130 after a second Ctrl-C that broke this off.
    """
    try:
        return StageResult(exit_code=0, manifest=str(run_stage(call)))
    except SlimeStagesError as error:
        return StageResult(exit_code=error.exit_code, message=error.message, hint=error.hint)
    except KeyboardInterrupt:
        return StageResult(exit_code=130, message="interrupted")
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return StageResult(exit_code=70, message=f"{call.title} failed: {type(error).__name__}: {error}")

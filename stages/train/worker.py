"""One of several trainer processes, as torchrun starts it: `python -m stages.train.worker CALL ERROR_FILE STAGE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import orjson

from slime_stages.errors import SlimeStagesError
from slime_stages.rewards.process_tree import die_with_parent
from slime_stages.stage import StageCall, finish_deferred
from stages.train.run import train, worker_stage


def main(call_json: str, error_file: str, stage: str) -> None:
    """Train; an error that a person can act on goes to the file, for the process above, whose number is `stage`."""
    end_with(int(stage))
    try:
        train(worker_stage(StageCall.from_json(call_json)))
        finish_deferred()
    except SlimeStagesError as error:
        told = {"exit_code": error.exit_code, "message": error.message, "hint": error.hint}
        Path(error_file).write_bytes(orjson.dumps(told))
        sys.exit(error.exit_code)


def end_with(stage: int) -> None:
    """Have the kernel kill this process with its parent; end at once if the stage that wants it is gone already."""
    die_with_parent()
    try:
        state = Path(f"/proc/{stage}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        state = "gone"
    if state in ("gone", "Z"):
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One of several trainer processes, as torchrun starts it: `python -m stages.train.worker CALL ERROR_FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from slime_stages.errors import SlimeStagesError
from slime_stages.rewards.process_tree import die_with_parent
from slime_stages.stage import StageCall, finish_deferred
from stages.train.run import train, worker_stage


def main(call_json: str, error_file: str) -> None:
    """Train; an error that a person can act on goes to the file, for the process above."""
    die_with_parent()
    try:
        train(worker_stage(StageCall.from_json(call_json)))
        finish_deferred()
    except SlimeStagesError as error:
        told = {"exit_code": error.exit_code, "message": error.message, "hint": error.hint}
        Path(error_file).write_bytes(orjson.dumps(told))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])

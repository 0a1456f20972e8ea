"""One of several trainer processes on this machine: `python -m stages.train.worker CALL FOLDER RANK COUNT STAGE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slime_stages.drain import Drained, install_drain
from slime_stages.errors import RetryableError, SlimeStagesError
from slime_stages.isolation.process_tree import die_with_parent
from slime_stages.stage import StageCall, finish_deferred
from stages.train.ranks import Ranks
from stages.train.run import train_together, worker_stage


def main(call_json: str, folder: str, rank: str, count: str, stage: str) -> None:
    """Train; an error that a person can act on is told in the folder, to the process above, whose number is `stage`."""
    end_with(int(stage))
    install_drain()
    ranks = Ranks(Path(folder), rank=int(rank), local_rank=int(rank), count=int(count), host="localhost")
    try:
        train_together(StageCall.from_json(call_json), ranks, first=worker_stage)
        finish_deferred()
    except SlimeStagesError as error:
        sys.exit(error.exit_code)
    except Drained:
        sys.exit(RetryableError.exit_code)


def end_with(stage: int) -> None:
    """Have the kernel kill this process with its parent; end at once if the stage that wants it is gone already."""
    die_with_parent()
    if os.getppid() != stage:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

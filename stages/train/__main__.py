"""`python -m stages.train`: the same program as `slime-stages train`."""

from __future__ import annotations

import sys

from slime_stages.cli.main import main


def run() -> int:
    if (code := main(["train", *sys.argv[1:]])) == 0:
        return 0
    from stages.train.slurm import exit_code_of_task

    return exit_code_of_task(code)


if __name__ == "__main__":
    sys.exit(run())

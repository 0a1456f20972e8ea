"""What `doctor`'s small job runs on a compute node: `python -m slime_stages.slurm.probe FOLDER STAGE…`.

Writes the node's facts into the folder, where `doctor` waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from slime_stages.errors import SlimeStagesError
from slime_stages.run.commit import replace_file
from slime_stages.slurm.commands import call_scheduler
from slime_stages.slurm.environment import submission_environment
from slime_stages.slurm.machine import collect_facts

FACTS = "facts.json"


def submit_error(options: Sequence[str]) -> str | None:
    """Why a job cannot be submitted from here, in sbatch's words; None if it can."""
    try:
        answer = call_scheduler(
            ["sbatch", "--test-only", *options, "--wrap=true"], environment=submission_environment(options)
        )
    except SlimeStagesError as error:
        return error.message
    return answer.complaint if answer.exit_code else None


def main(folder: str, stages: Sequence[str], options: Sequence[str]) -> None:
    facts = collect_facts(stages, submit_error=submit_error(options))
    replace_file(Path(folder) / FACTS, orjson.dumps(facts.to_dict(), option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    words = sys.argv[2:]
    main(sys.argv[1], [word for word in words if word[:1] != "-"], [word for word in words if word[:1] == "-"])

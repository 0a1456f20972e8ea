"""`python -m slime_stages.launch.one_call CALL DESCRIPTOR PARENT`: a process of its own for one stage call.

How the call ended goes to the descriptor, as JSON; what is printed goes where the process prints. It dies with the
process that started it.
"""

from __future__ import annotations

import os
import sys

from slime_stages.launch.preload import die_with_parent
from slime_stages.launch.run_stage import result_of
from slime_stages.stage import StageCall, finish_deferred, say


def main(call: str, descriptor: str, parent: str) -> None:
    die_with_parent(int(parent))
    with os.fdopen(int(descriptor), "wb") as answer:
        result = result_of(StageCall.from_json(call))
        answer.write(result.to_json())
    if result.exit_code:
        say(f"error: {result.message}" + (f"\n\nhint: {result.hint}" if result.hint else ""))
    finish_deferred()


if __name__ == "__main__":
    main(*sys.argv[1:])

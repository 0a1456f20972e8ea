"""`python -m stages.rollout`: the same program as `slime-stages rollout`."""

from __future__ import annotations

import sys

from slime_stages.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["rollout", *sys.argv[1:]]))

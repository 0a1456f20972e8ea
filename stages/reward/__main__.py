"""`python -m stages.reward`: the same program as `slime-stages reward`."""

from __future__ import annotations

import sys

from slime_stages.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["reward", *sys.argv[1:]]))

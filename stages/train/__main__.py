"""`python -m stages.train`: the same program as `slime-stages train`."""

from __future__ import annotations

import sys

from slime_stages.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))

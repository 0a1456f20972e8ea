"""`python -m stages.sync`: the same program as `slime-stages sync`."""

from __future__ import annotations

import sys

from slime_stages.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["sync", *sys.argv[1:]]))

from __future__ import annotations

import pytest

from slime_stages.cli.iter import run_here
from slime_stages.launch.iterate import iterations_to_run
from tests.slime_stages.cli.small_run import SmallRun


def test_a_run_without_iterations_has_none_to_mend(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(small.run, iterations_to_run(small.run, 0), accept_stale=False)

    root = small.run.root
    assert capsys.readouterr() == ("", f"{root} has no iterations yet\n\nhint: slime-stages iter --run {root} --n 1\n")

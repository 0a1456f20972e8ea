from __future__ import annotations

import sys

import pytest

from slime_stages.cli.display import LoopDisplay
from slime_stages.cli.iter import run_here
from slime_stages.launch.iterate import iterations_to_run
from tests.slime_stages.cli.small_run import SmallRun


def test_a_run_without_iterations_has_none_to_mend(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(small.run, iterations_to_run(small.run, 0), accept_stale=False)

    root = small.run.root
    assert capsys.readouterr() == ("", f"{root} has no iterations yet\n\nhint: slime-stages iter --run {root} --n 1\n")


def test_on_a_terminal_each_stream_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with LoopDisplay(range(2)) as display:
        assert display.on_stream is not None
        for done, shard in ((1, 0), (2, 1), (3, 0)):
            figures = f"in flight {done}"
            display.on_stream(shard, {"title": f"rollout 5/{shard}", "done": done, "total": 4, "figures": figures})
        shown = [(bar.description, bar.completed, bar.fields["figures"]) for bar in display._bar.tasks[2:]]

    assert shown == [("rollout 5/0", 3, "in flight 3"), ("rollout 5/1", 2, "in flight 2")]


def test_in_a_log_a_stream_says_how_far_it_is_itself() -> None:
    assert LoopDisplay(range(2)).on_stream is None

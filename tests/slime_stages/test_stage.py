from __future__ import annotations

from slime_stages.stage import Stage, StageCall, append_metrics
from tests.slime_stages.cli.small_run import SmallRun


def test_an_attempt_that_came_second_adds_no_line_to_the_metrics(small: SmallRun) -> None:
    plan = small.plan(0)
    stage = Stage(
        call=StageCall(stage="train", run=small.run.root, iteration=0),
        run=small.run,
        plan=plan,
        config=small.config,
        manifest_path=small.run.manifest_path("train", 0),
        inputs={},
        config_digest="",
    )
    append_metrics(stage, {"train/loss": 0.5})
    stage.commit(content="parameters")

    append_metrics(stage, {"train/loss": 0.25})

    [line] = small.run.metrics_path("train").read_text().splitlines()
    assert '"train/loss":0.5' in line

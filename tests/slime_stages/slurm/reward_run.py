"""A run whose rewards are to be made: the cheapest real stage, for tests of jobs."""

from __future__ import annotations

from pathlib import Path

from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved

REWARDS = """
import os, time

def reward(args, sample):
    print("user code prints")
    if os.path.exists("SLOW"):
        open("STARTED", "w").close()
        time.sleep(60)
    return 1.0
"""


def make_reward_run(folder: Path) -> RunDir:
    """One iteration with two rollout shards, in `folder/run`. Stages run in `folder`, where the reward function is.

    A file SLOW there holds every reward up for a minute; STARTED then tells that one is being made.
    """
    (folder / "my_rewards.py").write_text(REWARDS)
    settings = {"n_samples_per_prompt": 2, "custom_rm_path": "my_rewards.reward", "reward_workers": 1}
    small = SmallRun(run=RunDir(folder / "run"), config=resolved(rollout_batch_size=4, **settings).config)
    small.start(make_model_folder(folder / "model"))
    plan = small.plan(0)
    small.rollout(plan, 0)
    small.rollout(plan, 1)
    return small.run

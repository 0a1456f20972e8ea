"""Telling engines that serve this run of new weights, so that the next rollout finds them loaded. Never an error."""

from __future__ import annotations

from pathlib import Path

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.run.rundir import RunDir
from slime_stages.serving.bring import bring_all, bring_running, is_idle
from slime_stages.serving.registry import SERVICE, find_engines
from slime_stages.stage import say


def tell_engines(run: RunDir, config: Config, weights: Path, version: int) -> None:
    """Have the engines of `slime-stages serve` load a version that was just published.

    A rollout that streams has them at once, in the midst of its requests. Any other brings engines to the version of
    its plan itself: they are not told while a job uses them, nor where the next rollout wants older weights.
    """
    streams = config.rollout.rollout_streaming
    if config.serving.serving_mode != "service" or (config.rollout.staleness and not streams):
        return
    for record in find_engines(run.engines_path, kind=SERVICE):
        handles = record.handles()
        try:
            if streams:
                bring_running(handles, weights, version)
            elif is_idle(handles):
                bring_all(handles, weights, version)
            else:
                say(f"the engines at {record.url} are in use: the next rollout gives them weights {version}")
        except SlimeStagesError as error:
            say(f"warning: the engines at {record.url} were not given weights {version}: {error}")

"""Scoring again under another name: the name's settings are frozen first, then its stage is called like any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slime_stages.config.flags import Flags
from slime_stages.config.overrides import check_section, section_values
from slime_stages.errors import UsageError
from slime_stages.launch.start_run import check_plugins, current_revision
from slime_stages.lineage import committed
from slime_stages.named_rewards import OWN_NAME, choose_reward, freeze_settings, name_of, stage_of, with_settings
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_config, read_run_plan


def rescoring(calls: Iterable[StageCall], flags: Flags) -> Iterator[StageCall]:
    """The calls of a named reward, once the name stands for the settings of the command line in each of their runs."""
    known: set[RunDir] = set()
    for call in calls:
        run, name = RunDir(call.run), name_of(call.stage)
        if name is not None and run not in known:
            begin_reward(run, name, flags, force=call.force)
            known.add(run)
        yield call


def begin_reward(run: RunDir, name: str, flags: Flags, *, force: bool) -> None:
    """Freeze what scores under the name. UsageError for settings that cannot score, and for a name that has others."""
    values = section_values(flags, "reward")
    if values:
        config = with_settings(read_config(run, current_revision(run)), values)
        check_section(config, "reward")
        check_plugins(config)
    freeze_settings(run, name, values, force=force)


def train_on(run: RunDir, iteration: int, name: str) -> None:
    """Have an iteration train on the rewards of this name. MissingInputError if not all its shards have them."""
    plan = read_run_plan(run, iteration)
    stage = stage_of(None if name == OWN_NAME else name)
    for shard in range(plan.shard_count):
        committed(run, plan, stage, shard)
    choose_reward(run, iteration, name)


def refuse_settings(flags: Flags) -> None:
    """UsageError for settings without a name: those of the run's own rewards are frozen."""
    if flags:
        given = next(iter(flags.spelled.values()), "a setting")
        raise UsageError(
            f"{given} is for another reward than the run's own, whose settings are frozen",
            hint="add --as NAME to score again under that name, beside the run's own rewards",
        )

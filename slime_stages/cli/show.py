"""`slime-stages show`: samples for reading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.errors import MissingInputError, UsageError

if TYPE_CHECKING:
    from slime_stages.reading.lookup import Found
    from slime_stages.reading.reward_comparison import Comparison
    from slime_stages.run.plan import Plan
    from slime_stages.run.rundir import RunDir

STATUSES = ("pending", "completed", "truncated", "aborted", "failed")
REWARD_STATUSES = ("scored", "given", "skipped", "timeout", "oom", "error")

SampleName = Annotated[
    str | None, typer.Argument(metavar="[SAMPLE]", help="Its index, or ITERATION/SHARD/ROW.", show_default=False)
]
Iteration = Annotated[
    int | None, typer.Option("--iter", metavar="I", min=0, help="Iteration. [default: the newest with samples]")
]
Shard = Annotated[int | None, typer.Option("--shard", metavar="K", min=0, help="Samples of this shard only.")]
EvalName = Annotated[str | None, typer.Option("--eval", metavar="NAME", help="Samples of an evaluation set.")]
StatusName = Annotated[
    str | None, typer.Option("--status", metavar="S", help=f"{', '.join(STATUSES)}; or a reward's status.")
]
RewardStatusName = Annotated[
    str | None, typer.Option("--reward-status", metavar="S", help=f"{', '.join(REWARD_STATUSES)}.")
]
Best = Annotated[bool | None, typer.Option("--best/--worst", help="By reward, the highest or the lowest first.")]
Count = Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many, at most.")]
Tokens = Annotated[bool, typer.Option("--tokens/--text", help="Every token with its mask and log-prob, or the texts.")]


def command(
    sample: SampleName = None,
    run: RunFolder = None,
    iteration: Iteration = None,
    shard: Shard = None,
    split: EvalName = None,
    status: StatusName = None,
    reward_status: RewardStatusName = None,
    best: Best = None,
    count: Count = 3,
    tokens: Tokens = False,
) -> None:
    """Print samples: prompt, response, reward, and what became of them in training.

    Without SAMPLE the first ones of the newest iteration that has any, below a comparison of its rewards where it has
    more than one kind.
    """
    from slime_stages.cli.sample_text import print_samples
    from slime_stages.reading.lookup import read_records
    from slime_stages.run.rundir import find_run

    status, reward_status = checked_statuses(status, reward_status)
    if sample is not None and (shard is not None or status or reward_status or best is not None):
        raise UsageError(
            f"SAMPLE {sample} is one sample; --shard, --status, --reward-status, --best and --worst choose among many",
            hint=f"slime-stages show {sample}",
        )
    run_dir = find_run(run)
    if sample is not None:
        found = named_samples(run_dir, sample, iteration, split or "train")
    else:
        found = chosen_samples(run_dir, iteration, split or "train", shard, (status, reward_status), best)[:count]
        print_comparisons(run_dir, found[0].plan, shard)
    print_samples(read_records(run_dir, found), tokenizer_folder=run_dir.weights_path(0) if tokens else None)


def print_comparisons(run: RunDir, plan: Plan, shard: int | None) -> None:
    """A line for each reward of another name; nothing if there is none."""
    from slime_stages.cli.tables import make_console, print_table
    from slime_stages.named_rewards import read_settings, settings_text
    from slime_stages.reading.lookup import committed_shards
    from slime_stages.reading.reward_comparison import comparisons

    rows = [
        comparison_row(each) | {"scored with": settings_text(read_settings(run, each.name))}
        for each in comparisons(run, plan, committed_shards(run, plan, shard))
    ]
    if rows:
        console = make_console()
        print_table(console, rows, droppable=("scored with", "none"))
        console.print()


def comparison_row(found: Comparison) -> dict[str, str]:
    return {
        "reward": found.name,
        "samples": str(found.samples),
        "none": str(found.without),
        "mean": figure(found.mean, "{:.4g}"),
        "own mean": figure(found.own_mean, "{:.4g}"),
        "difference": figure(found.mean_difference, "{:+.4g}"),
        "same": figure(found.agreement, "{:.1%}"),
    }


def figure(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)


def checked_statuses(status: str | None, reward_status: str | None) -> tuple[str | None, str | None]:
    """The two kinds of status have no name in common, so `--status` takes either."""
    if status in REWARD_STATUSES and reward_status is None:
        status, reward_status = None, status
    for flag, given, known in (("--status", status, STATUSES), ("--reward-status", reward_status, REWARD_STATUSES)):
        if given is not None and given not in known:
            raise UsageError(f"{flag} {given!r} is no status", hint=f"{flag} {'|'.join(known)}")
    return status, reward_status


def named_samples(run: RunDir, name: str, iteration: int | None, split: str) -> list[Found]:
    """The sample of an address; every sample of an index, more than one where a prompt fanned out."""
    from slime_stages.reading.lookup import parse_sample, plan_of, sample_at, samples_with_index

    place = parse_sample(name)
    if isinstance(place, tuple):
        if iteration is not None:
            raise UsageError(f"SAMPLE {name} names its iteration", hint=f"slime-stages show {name}, without --iter")
        return [sample_at(run, plan_of(run, place[0], split), *place[1:])]
    plans = plans_to_search(run, iteration, split)
    found = samples_with_index(run, plans, place)
    if not found:
        first, last = plans[0], plans[-1]
        lowest = first.shards[0].start * first.n_samples_per_prompt
        highest = last.shards[-1].stop * last.n_samples_per_prompt - 1
        raise MissingInputError(
            f"there is no sample {place}; iterations {first.iteration} to {last.iteration} of {run.root} "
            f"have indices {lowest} to {highest}",
            hint=f"slime-stages show --run {run.root} --iter {last.iteration}",
        )
    return found


def plans_to_search(run: RunDir, iteration: int | None, split: str) -> list[Plan]:
    """Indices count over the whole run; over each evaluation anew, so that the newest one is meant."""
    from slime_stages.reading.lookup import newest_plan, plan_of, plans_with_rollouts

    if iteration is not None:
        return [plan_of(run, iteration, split)]
    newest = newest_plan(run, split)
    return plans_with_rollouts(run) if split == "train" else [newest]


def chosen_samples(
    run: RunDir,
    iteration: int | None,
    split: str,
    shard: int | None,
    statuses: tuple[str | None, str | None],
    best: bool | None,
) -> list[Found]:
    """The samples of one iteration that are asked for, in the order asked for."""
    from slime_stages.reading.lookup import newest_plan, plan_of, samples_of_plan

    plan = newest_plan(run, split) if iteration is None else plan_of(run, iteration, split)
    everything = list(samples_of_plan(run, plan, shard))
    wanted = [item for item in everything if has_statuses(item, *statuses)]
    if best is not None:
        scored = [(item.reward, item) for item in wanted if item.reward is not None]
        wanted = [item for _, item in sorted(scored, key=lambda pair: pair[0], reverse=best)]
    if not wanted:
        raise MissingInputError(
            f"none of the {len(everything)} samples of iteration {plan.iteration} is like that; there are "
            f"{counted(item.status for item in everything)}; rewards {counted(reward_of(i) for i in everything)}",
            hint=f"slime-stages status --run {run.root} --iter {plan.iteration}",
        )
    return wanted


def has_statuses(item: Found, status: str | None, reward_status: str | None) -> bool:
    return status in (None, item.status) and reward_status in (None, item.reward_status)


def reward_of(item: Found) -> str:
    return item.reward_status or "missing"


def counted(words: Iterable[str]) -> str:
    """`6 completed, 2 truncated`."""
    from collections import Counter

    return ", ".join(f"{count} {word}" for word, count in Counter(words).items()) or "none"

"""Finding samples of a run and everything known of them: rollout, reward, and what became of them in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_stages.data.schema import REWARD, ROLLOUT, TRAIN, ShardSchema
from slime_stages.data.shards import read_batches, read_shard
from slime_stages.errors import MissingInputError, SlimeStagesError, UsageError
from slime_stages.lineage import command, shard_manifest_path
from slime_stages.named_rewards import OWN, chosen_stage, names_of, stage_of
from slime_stages.run.manifest import Manifest, data_path, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_run_plan

ROLLOUT_COLUMNS = (
    "iteration",
    "shard",
    "split",
    "row",
    "index",
    "group_index",
    "rollout_id",
    "prompt_id",
    "tokens",
    "total_length",
    "response_length",
    "loss_mask",
    "rollout_log_probs",
    "status",
    "weight_versions",
    "prompt",
    "messages",
    "response",
    "label",
    "metadata",
    "sampling_seed",
    "generate_seconds",
)
LIGHT_COLUMNS = ("row", "index", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a sample lies, and what it is chosen by."""

    plan: Plan
    shard: int
    row: int
    index: int | None
    status: str
    reward: float | None
    reward_status: str | None
    """None while its reward is not committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """A sample with all that was committed about it; a column's value by its name."""

    rollout: dict[str, Any]
    reward: dict[str, Any] | None
    other_rewards: dict[str, dict[str, Any]]
    """By the name that it was scored under besides."""
    train: dict[str, Any] | None
    notes: tuple[str, ...]
    """Why reward or training are not shown, where they are of an earlier rollout."""


def parse_sample(text: str) -> int | tuple[int, int, int]:
    """An index, or iteration, shard and row."""
    parts = text.split("/")
    if len(parts) not in (1, 3) or not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"{text!r} names no sample",
            hint="slime-stages show INDEX, as in `show 163`, or ITERATION/SHARD/ROW, as in `show 5/0/3`",
        )
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1], numbers[2])


def plans_with_rollouts(run: RunDir, split: str = "train") -> list[Plan]:
    """Plans of the split, or of the evaluation set, that have a committed rollout, in order."""
    plans = []
    for iteration in run.iterations():
        if any(run.stage_path("rollout", iteration, split).glob("shard-*.json")):
            plans.append(read_run_plan(run, iteration, split))
    return plans


def newest_plan(run: RunDir, split: str = "train") -> Plan:
    """MissingInputError if nothing is rolled out yet."""
    for iteration in reversed(run.iterations()):
        if any(run.stage_path("rollout", iteration, split).glob("shard-*.json")):
            return read_run_plan(run, iteration, split)
    if split == "train":
        raise MissingInputError(f"{run.root} has no samples yet", hint=f"slime-stages iter --run {run.root} --n 1")
    evaluated = sorted({path.name for path in run.iterations_path.glob("*/eval/*")})
    names = f"; there are {', '.join(evaluated)}" if evaluated else ""
    raise MissingInputError(
        f"{run.root} has no evaluation {split!r} yet{names}", hint=f"slime-stages eval --run {run.root}"
    )


def plan_of(run: RunDir, iteration: int, split: str = "train") -> Plan:
    """The plan of an iteration that has rollouts. MissingInputError says which have."""
    if any(run.stage_path("rollout", iteration, split).glob("shard-*.json")):
        return read_run_plan(run, iteration, split)
    newest_plan(run, split)
    numbers = [plan.iteration for plan in plans_with_rollouts(run, split)]
    what, flag = ("iteration", "") if split == "train" else (f"evaluation {split!r} of weights", f" --eval {split}")
    raise MissingInputError(
        f"{what} {iteration} has no samples; there are {', '.join(map(str, numbers[-10:]))}",
        hint=f"slime-stages show --run {run.root} --iter {numbers[-1]}{flag}",
    )


def committed_shards(run: RunDir, plan: Plan, shard: int | None = None) -> list[int]:
    """Shards with a committed rollout, or the one asked for. MissingInputError if that is not there."""
    shards = [k for k in range(plan.shard_count) if shard_manifest_path(run, plan, "rollout", k).exists()]
    if shard is None or shard in shards:
        return shards if shard is None else [shard]
    if shard >= plan.shard_count:
        raise MissingInputError(
            f"iteration {plan.iteration} has shards 0 to {plan.shard_count - 1}; there is no shard {shard}",
            hint=f"--shard {shards[0] if shards else 0}",
        )
    raise MissingInputError(
        f"shard {shard} of iteration {plan.iteration} has no samples yet",
        hint=command(run, "rollout", plan.iteration, shard),
    )


def samples_of_plan(run: RunDir, plan: Plan, shard: int | None = None) -> Iterator[Found]:
    """Every sample that is there, in the order of shards and rows, without its tokens."""
    for each in committed_shards(run, plan, shard):
        rollout = _read(run, plan, "rollout", each, ROLLOUT, LIGHT_COLUMNS)
        rewards: list[Any] = [None] * len(rollout)
        if reward_manifest(run, plan, each) is not None:
            rewards = _read(run, plan, "reward", each, REWARD, ("reward", "reward_status"))
        for row, scored in zip(rollout, rewards, strict=True):
            yield Found(
                plan=plan,
                shard=each,
                row=row["row"],
                index=row["index"],
                status=row["status"],
                reward=scored["reward"] if scored else None,
                reward_status=scored["reward_status"] if scored else None,
            )


def samples_with_index(run: RunDir, plans: Sequence[Plan], index: int) -> list[Found]:
    """All samples of an index; a fan-out has several. MissingInputError if its shard is not rolled out yet."""
    found = []
    for plan in plans:
        for shard in _shards_to_search(run, plan, index // plan.n_samples_per_prompt):
            found += [item for item in samples_of_plan(run, plan, shard) if item.index == index]
    return found


def _shards_to_search(run: RunDir, plan: Plan, position: int) -> list[int]:
    """Where prompts are handed over, an iteration may hold any of them."""
    if plan.carry_from is not None:
        return committed_shards(run, plan)
    return [shard.shard for shard in plan.shards if shard.start <= position < shard.stop]


def sample_at(run: RunDir, plan: Plan, shard: int, row: int) -> Found:
    samples = list(samples_of_plan(run, plan, shard))
    if row < len(samples):
        return samples[row]
    raise MissingInputError(
        f"shard {shard} of iteration {plan.iteration} has rows 0 to {len(samples) - 1}; there is no row {row}",
        hint=f"slime-stages show --run {run.root} {plan.iteration}/{shard}/{len(samples) - 1}",
    )


def read_records(run: RunDir, found: Iterable[Found]) -> Iterator[SampleRecord]:
    """Everything about these samples, in their order."""
    for item in found:
        yield _record(run, item)


def _record(run: RunDir, item: Found) -> SampleRecord:
    plan, notes = item.plan, []
    path = shard_manifest_path(run, plan, "rollout", item.shard)
    rollout = _row(data_path(path, read_manifest(path)), ROLLOUT, item.row)
    reward = train = None
    if reward_manifest(run, plan, item.shard) is not None:
        path = shard_manifest_path(run, plan, "reward", item.shard)
        reward = _row(data_path(path, read_manifest(path)), REWARD, item.row)
    elif shard_manifest_path(run, plan, "reward", item.shard).exists():
        again = command(run, "reward", plan.iteration, item.shard)
        notes.append(f"its reward is of an earlier rollout and not shown; {again}")
    if plan.split == "train" and (manifest := _manifest(run, plan, "train", None)) is not None:
        if _is_trained_on(run, plan, manifest, item.shard):
            train = _train_row(run, plan, item)
        else:
            again = command(run, "train", plan.iteration, None)
            notes.append(f"training was of an earlier rollout or reward and is not shown; {again}")
    others = {name: row for name in names_of(run) if (row := _named_reward(run, item, name)) is not None}
    return SampleRecord(rollout=rollout, reward=reward, other_rewards=others, train=train, notes=tuple(notes))


def _named_reward(run: RunDir, item: Found, name: str) -> dict[str, Any] | None:
    stage = stage_of(name)
    manifest = reward_manifest(run, item.plan, item.shard, stage)
    if manifest is None:
        return None
    return _row(data_path(shard_manifest_path(run, item.plan, stage, item.shard), manifest), REWARD, item.row)


def _train_row(run: RunDir, plan: Plan, item: Found) -> dict[str, Any] | None:
    table = read_shard(run.train_samples_path(plan.iteration), TRAIN)
    for position, place in enumerate(zip(table["shard"].to_pylist(), table["row"].to_pylist(), strict=True)):
        if place == (item.shard, item.row):
            row: dict[str, Any] = table.slice(position, 1).to_pylist()[0]
            return row
    return None


def reward_manifest(run: RunDir, plan: Plan, shard: int, stage: str = OWN) -> Manifest | None:
    """The manifest of a shard's rewards, the run's own or others, if they are of the rollout that is there now."""
    manifest = _manifest(run, plan, stage, shard)
    rollout = _manifest(run, plan, "rollout", shard)
    if manifest is None or rollout is None or manifest.inputs.get("rollout") != rollout.content:
        return None
    return manifest


def _is_trained_on(run: RunDir, plan: Plan, train: Manifest, shard: int) -> bool:
    """Whether training read this shard as it is now."""
    for stage in ("rollout", chosen_stage(run, plan.iteration)):
        manifest = _manifest(run, plan, stage, shard)
        if manifest is None or train.inputs.get(f"{stage}/{shard:05d}") != manifest.content:
            return False
    return True


def _manifest(run: RunDir, plan: Plan, stage: str, shard: int | None) -> Manifest | None:
    try:
        return read_manifest(shard_manifest_path(run, plan, stage, shard))
    except MissingInputError:
        return None


def _read(
    run: RunDir, plan: Plan, stage: str, shard: int, schema: ShardSchema, columns: Sequence[str]
) -> list[dict[str, Any]]:
    path = shard_manifest_path(run, plan, stage, shard)
    try:
        rows: list[dict[str, Any]] = read_shard(data_path(path, read_manifest(path)), schema, columns).to_pylist()
    except SlimeStagesError as error:
        error.hint = command(run, stage, plan.iteration, shard) if plan.split == "train" else error.hint
        raise
    return rows


def _row(path: Path, schema: ShardSchema, row: int) -> dict[str, Any]:
    """One row of a shard, read a row group at a time."""
    columns = ROLLOUT_COLUMNS if schema is ROLLOUT else None
    before = 0
    for table in read_batches(path, schema, columns):
        if row < before + len(table):
            found: dict[str, Any] = table.slice(row - before, 1).to_pylist()[0]
            return found
        before += len(table)
    raise MissingInputError(f"{path} has {before} rows; there is no row {row}")

"""The plan of an iteration: who asks what, frozen before anything runs, a pure function of config and iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.commit import create_file
from slime_stages.run.digest import digest_json, sealed, unsealed

PLAN_VERSION = 1


class ShardPlan(BaseModel):
    """What one rollout job does."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    shard: int
    start: int
    """First prompt position; positions count prompts over the whole run."""
    stop: int
    """One past the last."""


class Plan(BaseModel):
    """One iteration, as it was decided."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    version: int = PLAN_VERSION
    run_id: str
    iteration: int
    split: str = "train"
    """`train`, or the name of an evaluation set."""
    config_revision: int
    """Which frozen config of the run holds for this iteration."""
    policy_version: int
    """Weights to generate with. Training starts from the newest ones, which may be newer: see `start_version`."""
    prompts_digest: str
    """Digest of the prompt table."""
    n_samples_per_prompt: int
    seed: int
    shuffle: bool
    """Ask the prompts of each epoch in an order of its own."""
    shards: tuple[ShardPlan, ...]
    carry_from: tuple[int, ...] | None = None
    """Earlier iterations whose hand-overs of prompts this one takes, each of them once in the run, and whose rollouts
    it waits for; null: prompts are neither taken nor handed over, and every shard asks exactly its slice."""
    stream_step: int | None = None
    """With a hand-over: iterations from one to the next that asks on where this one stops; 1 + staleness, or 1 if each
    goes on with what the one before has in flight."""
    data_source_from: int | None = None
    """Iteration whose state the user's data source goes on from; null for the first one, and for the prompt table."""

    @property
    def shard_count(self) -> int:
        return len(self.shards)

    @property
    def start_version(self) -> int:
        """The policy that training starts from."""
        return self.iteration

    @property
    def trained_version(self) -> int:
        """The policy that training makes, and the weights that sync publishes."""
        return self.iteration + 1

    @property
    def staleness(self) -> int:
        """Versions by which the weights that generate are older than the policy that is trained."""
        return self.start_version - self.policy_version

    @property
    def taken_until(self) -> int:
        """Hand-overs of the iterations before this one are taken by this plan, or by plans before it."""
        return max([self.policy_version, *(iteration + 1 for iteration in self.carry_from or ())])

    def to_bytes(self) -> bytes:
        return orjson.dumps(sealed(self._values()), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @property
    def digest(self) -> str:
        return digest_json(self._values())

    def _values(self) -> dict[str, Any]:
        """What came later is left out where it says nothing: the plan keeps the digest that it had."""
        unset = {name for name in ("carry_from", "stream_step", "data_source_from") if getattr(self, name) is None}
        return self.model_dump(exclude=unset)


def plan_shards(start: int, count: int, shard_count: int) -> tuple[ShardPlan, ...]:
    """Contiguous slices of `count` positions from `start`, whose sizes differ by one at most."""
    bounds = [start + count * shard // shard_count for shard in range(shard_count + 1)]
    return tuple(ShardPlan(shard=i, start=bounds[i], stop=bounds[i + 1]) for i in range(shard_count))


def freeze_plan(plan: Plan, path: Path) -> Plan:
    """Write the plan unless there is one; the one on disk counts."""
    create_file(path, plan.to_bytes())
    return read_plan(path)


def read_plan(path: Path) -> Plan:
    try:
        values = orjson.loads(path.read_bytes())
        if isinstance(values, dict) and values.get("version", PLAN_VERSION) != PLAN_VERSION:
            raise DataError(f"{path} is a plan of version {values['version']}; this reads {PLAN_VERSION}")
        return Plan(**unsealed(values, path))
    except FileNotFoundError as error:
        raise MissingInputError(f"there is no plan {path}") from error
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValidationError) as error:
        raise DataError(
            f"{path} is not a whole plan: {str(error).splitlines()[0]}",
            hint=f"rm {path}   (it is made again from the run's config)",
        ) from error

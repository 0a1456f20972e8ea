"""The whole config: immutable, the same bytes for the same settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from slime_stages.config.sections.algorithm import Algorithm
from slime_stages.config.sections.checkpoint import Checkpoint
from slime_stages.config.sections.data import Data
from slime_stages.config.sections.eval import Eval
from slime_stages.config.sections.gate import Gate
from slime_stages.config.sections.model import Model
from slime_stages.config.sections.optimizer import Optimizer
from slime_stages.config.sections.plugins import Plugins
from slime_stages.config.sections.reward import Reward
from slime_stages.config.sections.rollout import Rollout
from slime_stages.config.sections.serving import Serving
from slime_stages.config.sections.tracking import Tracking
from slime_stages.config.sections.train import Train
from slime_stages.config.types import Section
from slime_stages.errors import DataError
from slime_stages.run.digest import digest_json

if TYPE_CHECKING:
    from slime_stages.config.args import Args


class Config(BaseModel):
    """A run's settings as resolved: derived values are filled in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Model
    data: Data
    rollout: Rollout
    serving: Serving = Serving()
    reward: Reward = Reward()
    eval: Eval = Eval()
    train: Train = Train()
    optimizer: Optimizer = Optimizer()
    algorithm: Algorithm = Algorithm()
    gate: Gate = Gate()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    plugins: Plugins = Plugins()

    @classmethod
    def from_json(cls, data: bytes) -> Config:
        """What `to_json_bytes` wrote, perhaps by an older version: settings that came later take their default."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise DataError(
                f"a frozen config does not fit this version of slime-stages: {where}: {first['msg'].lower()}",
                hint="use the version that the run was made with, or `slime-stages init` a new run",
            ) from error

    def to_json_bytes(self) -> bytes:
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def section(self, name: str) -> Section:
        section = getattr(self, name)
        assert isinstance(section, Section), name
        return section

    def flat(self) -> dict[str, Any]:
        """Every setting by its own name."""
        return {name: value for section in type(self).model_fields for name, value in self.section(section)}

    def digest(self, sections: Iterable[str]) -> str:
        """xxh3-128 over these sections: a stage's digest changes with what the stage reads, and with nothing else."""
        values = {name: self.section(name).as_json() for name in sections}
        return digest_json({name: value for name, value in values.items() if value})

    def as_args(self) -> Args:
        """One flat namespace with slime's names, as plug-ins get it."""
        from slime_stages.config.args import args_of

        return args_of(self)

    @property
    def samples_per_iteration(self) -> int:
        return self.rollout.rollout_batch_size * self.rollout.n_samples_per_prompt

    @property
    def global_batch_size(self) -> int:
        """Rollouts in one optimizer step."""
        size = self.train.global_batch_size
        return size if size is not None else self.samples_per_iteration // self.steps_per_iteration

    @property
    def steps_per_iteration(self) -> int:
        """Optimizer steps in one iteration."""
        if self.train.num_steps_per_rollout is not None:
            return self.train.num_steps_per_rollout
        return self.samples_per_iteration // (self.train.global_batch_size or self.samples_per_iteration)

    @property
    def decay_steps(self) -> int | None:
        """Optimizer steps until the learning rate has fallen; None where neither they nor the run's end are known."""
        if self.optimizer.lr_decay_iters is not None or self.data.num_rollout is None:
            return self.optimizer.lr_decay_iters
        return self.data.num_rollout * self.steps_per_iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that two configs do not share."""

    name: str
    """As in `train.seed`."""

    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.old!r} -> {self.new!r}"


def diff(old: Config, new: Config) -> list[Difference]:
    """Settings that differ, in the order of the sections."""
    return [
        Difference(name=f"{section}.{name}", old=value, new=changed)
        for section in Config.model_fields
        for (name, value), (_, changed) in zip(old.section(section), new.section(section), strict=True)
        if value != changed
    ]

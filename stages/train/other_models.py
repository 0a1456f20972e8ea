"""The models beside the policy, as copies of weights in its trainer: reference, teacher, and what generated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slime_stages.errors import MissingInputError
from slime_stages.lineage import command
from slime_stages.stage import Stage
from slime_stages.weights.checkpoints import find_weights, has_weights, iteration_folder
from stages.train.megatron import checkpoint
from stages.train.megatron.step import Trainer
from stages.train.prepare import OLD_ACTOR, REFERENCE, TEACHER


@dataclass(slots=True, kw_only=True)
class OtherModels:
    """What one call needs of them; its trainer loads them one after the other, before the policy."""

    stage: Stage
    sampler: Path | None
    """Weights that generated, where training starts from newer ones."""

    @property
    def begin_with_first(self) -> bool:
        """The reference is the model that the run began with."""
        return self._needs_reference(0) and self.stage.config.algorithm.ref_load is None

    def keep(self, trainer: Trainer) -> None:
        """Copy what the policy is not. The trainer holds the sampler's weights or the first ones; the policy of an
        iteration 0 is in place again afterwards."""
        algorithm, plan, first = self.stage.config.algorithm, self.stage.plan, self.stage.run.weights_path(0)
        held: Path | None = self.sampler or first
        if algorithm.keep_old_actor and plan.staleness > 0:
            self._check_sampler()
            trainer.copies.keep(OLD_ACTOR)
        if self.begin_with_first:
            if held != first:
                trainer.load_weights(first)
            held = first
            trainer.copies.keep(REFERENCE)
        elif self._needs_reference(0) and algorithm.ref_load is not None:
            load_model(trainer, Path(algorithm.ref_load), algorithm.ref_ckpt_step)
            held = None
            trainer.copies.keep(REFERENCE)
        elif algorithm.needs_reference and self._reference_version < plan.start_version:
            self._load_earlier_policy(trainer, self._reference_version)
            trainer.copies.keep(REFERENCE)
        if algorithm.opd_teacher_load is not None:
            load_model(trainer, Path(algorithm.opd_teacher_load), algorithm.opd_teacher_ckpt_step)
            held = None
            trainer.copies.keep(TEACHER)
        if plan.start_version == 0 and held != first:
            trainer.load_weights(first)

    def keep_policy(self, trainer: Trainer) -> None:
        """Called with the policy in place: it may have become the reference."""
        if self.stage.config.algorithm.needs_reference and 0 < self._reference_version == self.stage.plan.start_version:
            trainer.copies.keep(REFERENCE)

    @property
    def _reference_version(self) -> int:
        return self.stage.config.algorithm.reference_version(self.stage.plan.iteration)

    def _needs_reference(self, version: int) -> bool:
        return self.stage.config.algorithm.needs_reference and self._reference_version == version

    def _check_sampler(self) -> None:
        if self.sampler is None:
            version = self.stage.plan.policy_version
            raise MissingInputError(
                f"keep_old_actor asks for the weights of version {version}, which are not kept any more",
                hint="--keep-weights N, above the staleness",
            )

    def _load_earlier_policy(self, trainer: Trainer, version: int) -> None:
        folder = self.stage.run.checkpoints_path
        if not has_weights(iteration_folder(folder, version)):
            raise MissingInputError(
                f"the reference is the policy of version {version}, whose checkpoint is not kept any more",
                hint=command(self.stage.run, "train", version - 1, None, force=True),
            )
        checkpoint.load(trainer, folder, version, with_optimizer=False)


def load_model(trainer: Trainer, folder: Path, step: int | None) -> None:
    """Weights of a Hugging Face folder, or of a torch_dist checkpoint or a folder of them; all ranks call it."""
    if (folder / "config.json").exists():
        trainer.load_weights(folder)
        return
    checkpoint.load_folder(trainer, find_weights(folder, step), with_optimizer=False)

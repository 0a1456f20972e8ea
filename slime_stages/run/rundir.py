"""The run directory: every path of a run is made here and nowhere else.

RUN/
  run.json  config.json  configs/0000.json      identity; the frozen config and its earlier revisions
  prompts/prompts.parquet  prompts/eval-NAME.parquet
  iterations/000012/plan.json
  iterations/000012/{rollout,reward}/shard-00003-of-00008.parquet + .json
  iterations/000012/reward-NAME/shard-00003-of-00008.parquet + .json      the same samples scored under another name
  iterations/000012/reward.json                                           which of its rewards training reads, if chosen
  iterations/000012/train/{samples.parquet,manifest.json,probes.parquet}
  iterations/000012/sync/manifest.json
  iterations/000012/eval/NAME/{rollout,reward}/shard-…
  rewards/NAME.json                             what scores under that name
  weights/000013/  checkpoints/iter_0000013/  engines/*.json  logs/  metrics/*.jsonl  metrics/summaries/000012.json
  chain.json  jobs/000012-rollout/attempt-000/   on SLURM: what is wanted, and every submission
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import orjson

from slime_stages.errors import DataError, MissingInputError, SlimeStagesError, UsageError
from slime_stages.run.commit import TEMPORARY_PREFIX, create_file, replace_file
from slime_stages.run.digest import sealed, unsealed

RUN_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunDir:
    """All paths of one run."""

    root: Path

    @property
    def identity_path(self) -> Path:
        return self.root / "run.json"

    @property
    def config_path(self) -> Path:
        """The frozen config in force; revision n is also `config_revision_path(n)`."""
        return self.root / "config.json"

    def config_revision_path(self, revision: int) -> Path:
        return self.root / "configs" / f"{revision:04d}.json"

    def prompts_path(self, split: str = "train") -> Path:
        return self.root / "prompts" / ("prompts.parquet" if split == "train" else f"eval-{split}.parquet")

    def prompts_manifest_path(self, split: str = "train") -> Path:
        return self.prompts_path(split).with_suffix(".json")

    @property
    def iterations_path(self) -> Path:
        return self.root / "iterations"

    def iteration_path(self, iteration: int) -> Path:
        return self.iterations_path / f"{iteration:06d}"

    def plan_path(self, iteration: int, split: str = "train") -> Path:
        return self.stage_path("plan", iteration, split).with_suffix(".json")

    def stage_path(self, stage: str, iteration: int, split: str = "train") -> Path:
        """Folder of a stage's output. Evaluation sets have their own below `eval/`."""
        return _stage_path(self, stage, iteration, split)

    def shard_path(self, stage: str, iteration: int, shard: int, count: int, split: str = "train") -> Path:
        return self.stage_path(stage, iteration, split) / f"shard-{shard:05d}-of-{count:05d}.parquet"

    def manifest_path(
        self, stage: str, iteration: int, shard: int | None = None, count: int = 0, split: str = "train"
    ) -> Path:
        if shard is None:
            return self.stage_path(stage, iteration, split) / "manifest.json"
        return self.stage_path(stage, iteration, split) / f"shard-{shard:05d}-of-{count:05d}.json"

    def journal_path(self, iteration: int, shard: int, split: str = "train") -> Path:
        return self.stage_path("rollout", iteration, split) / f".journal-{shard:05d}"

    def data_source_path(self, iteration: int) -> Path:
        """State of the user's data source after an iteration."""
        return self.iteration_path(iteration) / "data_source"

    def reward_choice_path(self, iteration: int) -> Path:
        """Which reward the iteration's training reads; without the file, the run's own."""
        return self.iteration_path(iteration) / "reward.json"

    def reward_settings_path(self, name: str) -> Path:
        """What scores under a name of its own."""
        return self.root / "rewards" / f"{name}.json"

    def train_samples_path(self, iteration: int) -> Path:
        return self.stage_path("train", iteration) / "samples.parquet"

    def weights_path(self, version: int) -> Path:
        return self.root / "weights" / f"{version:06d}"

    @property
    def checkpoints_path(self) -> Path:
        return self.root / "checkpoints"

    @property
    def engines_path(self) -> Path:
        return self.root / "engines"

    @property
    def chain_path(self) -> Path:
        """What the jobs of this run are to do next, on SLURM."""
        return self.root / "chain.json"

    @property
    def jobs_path(self) -> Path:
        return self.root / "jobs"

    def log_path(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def metrics_path(self, stage: str) -> Path:
        return self.root / "metrics" / f"{stage}.jsonl"

    def summary_path(self, iteration: int, split: str = "train") -> Path:
        """What is known of an iteration, so that it need not be read again; may be deleted."""
        name = f"{iteration:06d}" if split == "train" else f"{iteration:06d}-eval-{split}"
        return self.root / "metrics" / "summaries" / f"{name}.json"

    def scored_path(self, iteration: int, split: str, contents: str) -> Path:
        """Metrics of an iteration or an evaluation whose reward shards have these contents: there once told of."""
        name = self.summary_path(iteration, split).stem
        return self.root / "metrics" / "scored" / f"{name}-{contents[:12]}.json"

    def run_id(self) -> str:
        return str(self._identity()["run_id"])

    def exists(self) -> bool:
        return self.identity_path.exists()

    def recover(self) -> bool:
        """Whether this is a run. A lost or altered run.json is written again, since every plan names its run."""
        try:
            self._read_identity()
        except SlimeStagesError:
            named = set(self._run_ids_of_plans())
            if len(named) == 1:
                replace_file(self.identity_path, _identity_bytes(named.pop()))
        return self.exists()

    def create(self) -> str:
        """Make the run's identity; returns its id. UsageError if the folder holds something that is no run."""
        if not self.recover() and self.root.exists() and any(self.root.iterdir()):
            names = {path.name for path in self.root.iterdir() if not path.name.startswith(TEMPORARY_PREFIX)}
            if not names <= {"prompts", "configs", "config.json", "weights"}:
                found = ", ".join(sorted(names)[:3])
                raise UsageError(f"{self.root} is no run and not empty ({found})", hint="choose another --run folder")
        self.root.mkdir(parents=True, exist_ok=True)
        run_id = f"{self.root.name}-{uuid.uuid4().hex[:8]}"
        create_file(self.identity_path, _identity_bytes(run_id))
        return self.run_id()

    def iterations(self) -> list[int]:
        """Iterations that have a folder, in order."""
        if not self.iterations_path.exists():
            return []
        return sorted(int(path.name) for path in self.iterations_path.iterdir() if path.name.isdigit())

    def _identity(self) -> dict[str, object]:
        identity = self._read_identity()
        if identity.get("version") != RUN_VERSION:
            raise DataError(f"{self.root} is a run of version {identity.get('version')}; this works on {RUN_VERSION}")
        return identity

    def _read_identity(self) -> dict[str, object]:
        try:
            return unsealed(orjson.loads(self.identity_path.read_bytes()), self.identity_path)
        except FileNotFoundError as error:
            raise MissingInputError(
                f"{self.root} is no run: it has no run.json",
                hint=f"slime-stages init --run {self.root} --config CONFIG.toml",
            ) from error
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise DataError(f"{self.identity_path} is not whole: {error}") from error

    def _run_ids_of_plans(self) -> Iterator[str]:
        for path in self.iterations_path.glob("[0-9]*/plan.json"):
            with suppress(OSError, DataError, orjson.JSONDecodeError, AttributeError, KeyError):
                yield str(unsealed(orjson.loads(path.read_bytes()), path)["run_id"])


def program_of(stage: str) -> str:
    """The program that makes a stage's output: `reward` behind `reward-NAME`."""
    return stage.partition("-")[0]


@lru_cache(maxsize=256)
def _stage_path(run: RunDir, stage: str, iteration: int, split: str) -> Path:
    """Asked for once for each shard; making a path takes longer than reading a manifest."""
    base = run.iteration_path(iteration)
    return base / stage if split == "train" else base / "eval" / split / stage


def _identity_bytes(run_id: str) -> bytes:
    return orjson.dumps(sealed({"run_id": run_id, "version": RUN_VERSION}))


def find_run(given: Path | None, *, base: Path = Path("runs")) -> RunDir:
    """The run meant: `--run`, else `$SLIME_RUN`, else the only run below `runs/`."""
    chosen = given or (Path(os.environ["SLIME_RUN"]) if os.environ.get("SLIME_RUN") else None)
    if chosen is not None:
        run = RunDir(chosen.absolute())
        run.recover()
        run.run_id()
        return run
    runs = sorted(path for path in base.glob("*/") if RunDir(path.absolute()).recover())
    if len(runs) == 1:
        return RunDir(runs[0].absolute())
    if not runs:
        raise MissingInputError(
            f"there is no run below {base}/", hint="slime-stages init --run runs/NAME --config FILE"
        )
    names = ", ".join(str(path) for path in runs)
    raise UsageError(f"there are {len(runs)} runs ({names})", hint=f"add --run {runs[0]}, or set SLIME_RUN")

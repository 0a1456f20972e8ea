"""What every stage program starts from and ends with: the call, the frozen plan and config, and the commit.

A stage reads committed files, works, and commits once. `open_stage` tells it whether there is anything to do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from slime_stages.config import Config
from slime_stages.config.frozen import read_frozen
from slime_stages.errors import DataError, MissingInputError, SlimeStagesError
from slime_stages.run.claims import end_claimed
from slime_stages.run.commit import is_listed, remove_leftovers, retryable_full_disk, temporary_name
from slime_stages.run.manifest import Manifest, check_data, check_size, commit_data, commit_manifest, now, read_manifest
from slime_stages.run.plan import Plan, read_plan
from slime_stages.run.rundir import RunDir, program_of

SECTIONS_READ = {
    "rollout": ("rollout", "plugins"),
    "reward": ("reward", "plugins"),
    "train": ("train", "optimizer", "algorithm", "plugins"),
    "sync": (),
}
"""Config sections on which each stage's output depends, besides its inputs."""


def config_digest(config: Config, call: StageCall) -> str:
    """Digest of what a call reads of the config. Evaluation has a section of its own; some rollouts score, too."""
    more = ("eval",) if call.split != "train" else ("reward",) if config.rollout.scores else ()
    return config.digest((*SECTIONS_READ[program_of(call.stage)], *(more if call.stage == "rollout" else ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCall:
    """One call of a stage program, as the command line, a job or a driver makes it."""

    stage: str
    """rollout, reward, train or sync; `reward-NAME` scores under another name."""
    run: Path
    iteration: int
    shard: int | None = None
    split: str = "train"
    """`train`, or the name of an evaluation set."""
    until: int | None = None
    """Of a rollout that streams: one past the last iteration that the call goes on to, shard by shard."""
    force: bool = False
    """Do it again even if it is committed and fresh; the old output moves to `superseded/`."""

    def to_json(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return orjson.dumps({**values, "run": str(self.run)}).decode()

    @classmethod
    def from_json(cls, text: str) -> StageCall:
        values = orjson.loads(text)
        return cls(**{**values, "run": Path(values["run"])})

    @property
    def title(self) -> str:
        """For people: `rollout 12/3`, `train 12`, `reward 12/0 heldout`."""
        where = f"{self.iteration}" if self.shard is None else f"{self.iteration}/{self.shard}"
        return f"{self.stage} {where}" + ("" if self.split == "train" else f" {self.split}")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Whether a stage's output can be used."""

    kind: str
    """missing, fresh, stale or corrupt."""
    reason: str = ""
    manifest: Manifest | None = None

    @property
    def is_fresh(self) -> bool:
        return self.kind == "fresh"


@dataclass(slots=True, kw_only=True)
class Stage:
    """An opened call: what to read from, where to write, and the clock."""

    call: StageCall
    run: RunDir
    plan: Plan
    config: Config
    manifest_path: Path
    inputs: dict[str, str]
    config_digest: str
    started: str = field(default_factory=now)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to the manifest's `seconds[part]`."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = round(self.seconds.get(part, 0.0) + time.monotonic() - begin, 3)

    def state(self, *, deep: bool = True) -> State:
        return output_state(self.manifest_path, self.inputs, self.config_digest, deep=deep)

    def temporary(self, name: str) -> Path:
        """A path to write to before `commit`, in the folder where the output goes."""
        folder = self.manifest_path.parent
        folder.mkdir(parents=True, exist_ok=True)
        return temporary_name(folder / name)

    @contextmanager
    def output(self, name: str) -> Iterator[Path]:
        """A temporary file to write and to commit within the block; gone at its end if it was not committed."""
        temporary = self.temporary(name)
        with retryable_full_disk(temporary.parent):
            try:
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    def commit(
        self,
        *,
        data: Path | None = None,
        name: str | None = None,
        folders: Mapping[Path, Path] | None = None,
        **fields: Any,
    ) -> Path:
        """Publish a written temporary file as `name` with its manifest; or the manifest alone.

        `folders` are what else the attempt has made, finished, by the place where each belongs: of racing attempts
        one has all its outputs there. Nothing may lie in such a place but by this.

        Returns the manifest's path, also when another attempt has won meanwhile, which is said on stderr.
        """
        manifest = Manifest(
            kind=self.call.stage,
            run_id=self.plan.run_id,
            iteration=self.call.iteration,
            shard=self.call.shard,
            split=self.call.split,
            data=name,
            inputs=self.inputs,
            config_digest=self.config_digest,
            config_revision=self.plan.config_revision,
            policy_version=self.plan.policy_version,
            started=self.started,
            seconds=dict(self.seconds),
            **fields,
        )
        if data is not None:
            won = commit_data(manifest, temporary=data, manifest_path=self.manifest_path, folders=folders)
        else:
            won = commit_manifest(manifest, self.manifest_path, folders)
        if not won:
            say(f"{self.call.title}: another attempt has committed it meanwhile; this one's output is not needed")
        return self.manifest_path


def open_stage(
    call: StageCall,
    inputs: Mapping[str, str],
    *,
    plan: Plan,
    config: Config,
    path: Path,
    check: Callable[[RunDir, Manifest], None] | None = None,
) -> Stage | None:
    """Ready the call for work, or None (said on stderr) if its output is committed and fresh.

    A commit that an attempt was killed within is ended first; then what is stale, corrupt or forced moves to
    `superseded/`. `check` raises if what the stage has made beside its manifest's folder is not whole.
    """
    stage = Stage(
        call=call,
        run=RunDir(call.run),
        plan=plan,
        config=config,
        manifest_path=path,
        inputs=dict(inputs),
        config_digest=config_digest(config, call),
    )
    end_claimed(path)
    state = stage.state() if check is None else checked(stage.state(), stage.run, check)
    if path.parent.exists():
        remove_leftovers(path.parent)
    if state.is_fresh and not call.force:
        say(f"{call.title}: already committed")
        return None
    if state.kind != "missing":
        say(f"{call.title}: made again, it is {state.reason if state.kind != 'fresh' else 'forced'}")
        supersede(path)
    return stage


def output_state(path: Path, inputs: Mapping[str, str], config_digest: str, *, deep: bool) -> State:
    """Compare a manifest with what its stage would be made from now. `deep` also reads the data for its digest."""
    try:
        manifest = read_manifest(path)
        if manifest.data is not None and deep:
            check_data(path, manifest)
        elif manifest.data is not None:
            check_size(path, manifest)
    except MissingInputError as error:
        return State(kind="corrupt", reason=f"corrupt: {error}") if path.exists() else State(kind="missing")
    except DataError as error:
        return State(kind="corrupt", reason=f"corrupt: {error}")
    if inputs != manifest.inputs:
        changed = sorted(
            key for key in inputs.keys() | manifest.inputs.keys() if inputs.get(key) != manifest.inputs.get(key)
        )
        return State(kind="stale", reason=f"stale: {', '.join(changed)} changed since", manifest=manifest)
    if manifest.config_digest != config_digest:
        return State(kind="stale", reason="stale: its config sections changed since", manifest=manifest)
    return State(kind="fresh", manifest=manifest)


def checked(state: State, run: RunDir, check: Callable[[RunDir, Manifest], None]) -> State:
    """The state of an output, corrupt if it is fresh but `check` raises."""
    if state.manifest is None or not state.is_fresh:
        return state
    try:
        check(run, state.manifest)
    except SlimeStagesError as error:
        return State(kind="corrupt", reason=f"corrupt: {error}", manifest=state.manifest)
    return state


def supersede(path: Path) -> None:
    """Move a manifest, then its data, to `superseded/` beside it, so that nobody takes it for the output."""
    try:
        name = read_manifest(path).data
    except SlimeStagesError:
        name = path.with_suffix(".parquet").name if path.with_suffix(".parquet").exists() else None
    folder = temporary_name(path.parent / "superseded" / path.stem).with_name(f"{path.stem}-{time.time_ns()}")
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(folder / path.name)
    if name is not None and path.with_name(name).exists():
        path.with_name(name).rename(folder / name)


def read_run_plan(run: RunDir, iteration: int, split: str = "train") -> Plan:
    """The plan of an iteration, or of an evaluation of its weights. DataError if it is another run's."""
    path = run.plan_path(iteration, split)
    plan = read_plan(path)
    if plan.run_id != run.run_id() or plan.iteration != iteration:
        raise DataError(
            f"{path} is the plan of iteration {plan.iteration} of run {plan.run_id}, "
            f"not of {iteration} of {run.run_id()}"
        )
    return plan


def read_config(run: RunDir, revision: int) -> Config:
    """A frozen config of the run."""
    return read_frozen(run.config_revision_path(revision))


BACKGROUND_VARIABLE = "SLIME_STAGES_BACKGROUND_WRITES"
"""Set where a process may outlive its stage to finish writing; a batch job's processes die with the job."""

_deferred: list[Callable[[], object]] = []


def defer(function: Callable[[], object]) -> None:
    """Have `function` called after the stage's result is reported: the next stage need not wait for it."""
    _deferred.append(function)


def finish_deferred() -> None:
    """Do what was put off; the process may end afterwards."""
    while _deferred:
        _deferred.pop(0)()


def append_metrics(stage: Stage, metrics: Mapping[str, float | None]) -> None:
    """Add a line to the run's metrics, unless another attempt has committed the output meanwhile, with a line of its
    own. The last line of an iteration counts, should it be made again."""
    if is_listed(stage.manifest_path):
        return
    path = stage.run.metrics_path(stage.call.stage)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"iteration": stage.plan.iteration, "time": now(), **metrics}
    with path.open("ab") as file:
        file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def say(text: str) -> None:
    """Tell the person who reads the log."""
    print(text, file=sys.stderr, flush=True)

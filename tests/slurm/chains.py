"""Chains on the test cluster, begun as a person begins them: a command that returns, and jobs that go on alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slime_stages.launch.chain_state import Chain, read_chain
from slime_stages.launch.states import first_incomplete
from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.slurm.jobs import Attempt, TaskEnd, all_attempts, read_end
from slime_stages.slurm.names import job_name
from slime_stages.slurm.requeue import progress_of
from tests.e2e.runs import SETTINGS
from tests.slurm.cluster import Cluster
from tests.slurm.faults import VARIABLE, plant

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).with_name("slime-stages"))
HEADER = """#!/bin/bash
#SBATCH --cpus-per-task=1
#SBATCH --mem={memory}M
#SBATCH --time=00:10:00
export OMP_NUM_THREADS=1
exec {program} "$@"
"""
FAULTS = {"custom-generate-function-path": "tests.slurm.faults.generate"}
STAGES = ("rollout", "reward", "train", "sync")
MEMORY = {"rollout": 1500, "reward": 1000, "train": 3000, "sync": 3000, "chain": 500}


@dataclass(slots=True, kw_only=True)
class ChainRun:
    """A run folder, a cluster, and the command line between them."""

    folder: Path
    cluster: Cluster
    model: Path
    prompts: Path
    engine: Engine
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def run(self) -> RunDir:
        return RunDir(self.folder / "run")

    @property
    def sbatch(self) -> Path:
        return self.folder / "sbatch"

    def prepare(self) -> ChainRun:
        self.sbatch.mkdir(parents=True)
        for stage, memory in MEMORY.items():
            program = f"{COMMAND} advance" if stage == "chain" else f"{sys.executable} -m stages.{stage}"
            (self.sbatch / f"{stage}.sbatch").write_text(HEADER.format(memory=memory, program=program))
        text = SETTINGS.format(model=self.model, prompts=self.prompts)
        text += f'[serving]\nrollout_external_engine_addrs = ["{self.engine.url.removeprefix("http://")}"]\n'
        (self.folder / "config.toml").write_text(text)
        return self

    def plant(self, iteration: int, group: int, *actions: str) -> None:
        """Have these happen to a group, one each time it is asked."""
        plant(self.folder / "faults", iteration, group, *actions)

    def call(self, *words: str, check: bool = True, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        """`slime-stages WORDS` as a person types it."""
        command, where = [COMMAND, *words], self.environment
        done = subprocess.run(
            command, cwd=ROOT, env=where, capture_output=True, text=True, check=False, timeout=timeout
        )
        if check and done.returncode != 0:
            raise AssertionError(f"slime-stages {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done

    def iter(
        self, count: int, *words: str, check: bool = True, timeout: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """`slime-stages iter --executor slurm` for so many iterations."""
        return self.call("iter", *self.iter_words(count), *words, check=check, timeout=timeout)

    def iter_words(self, count: int) -> list[str]:
        own = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        places = {"run": self.run.root, "config": self.folder / "config.toml", "sbatch": self.sbatch}
        where = [word for name, path in places.items() for word in (f"--{name}", str(path))]
        return [*where, "--executor", "slurm", "--n", str(count), *own]

    def edit_header(self, stage: str, before: str, after: str) -> None:
        """Replace words in the stage's header."""
        path = self.sbatch / f"{stage}.sbatch"
        assert before in path.read_text(), path.read_text()
        path.write_text(path.read_text().replace(before, after))

    @property
    def environment(self) -> dict[str, str]:
        """Of a person who types a command."""
        return {**self.cluster.environment, VARIABLE: str(self.folder / "faults"), "MKL_CBWR": "AVX2,STRICT"}

    def wait(self, target: int, *, seconds: float = 240.0) -> Chain:
        """Until the chain is complete or has stopped, and no job is left; its state."""
        self.until(lambda: self._is_over(target), f"{target} iterations", seconds=seconds)
        chain = read_chain(self.run)
        assert chain is not None
        return chain

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.report()}"
            time.sleep(0.5)

    def tries(self, stage: str, iteration: int, shard: int | None = None) -> list[TaskEnd | None]:
        """How each submission for an output ended, oldest first."""
        return [read_end(attempt, shard) for attempt in self.attempts(stage, iteration) if shard in attempt.shards]

    def attempts(self, stage: str, iteration: int) -> list[Attempt]:
        return [a for a in all_attempts(self.run) if (a.stage, a.iteration, a.split) == (stage, iteration, "train")]

    def running(self, stage: str, iteration: int, shard: int | None = None) -> str:
        """The id of a task once it runs and has got as far as the engine."""
        found: list[str] = []

        def runs() -> bool:
            for attempt in self.attempts(stage, iteration):
                task = attempt.task_id(shard) if shard in attempt.shards else None
                if task and self.cluster.run("squeue", "-h", "-j", task, "-t", "RUNNING", "-o", "%i", check=False):
                    found[:] = [task]
            return bool(found)

        self.until(runs, f"{stage} {iteration} running")
        return found[0]

    def journalled(self, iteration: int, shard: int) -> int:
        """How many groups of a rollout's newest submission are finished and kept."""
        return progress_of(self.run, self.attempts("rollout", iteration)[-1].call(self.run, shard))

    def process(self, job: str, number: int) -> int:
        """The id of the `number`th process of a job on several nodes, as soon as it is there."""
        found: list[int] = []
        wanted = {f"SLURM_JOB_ID={job}", f"SLURM_PROCID={number}"}

        def is_there() -> bool:
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    words = (folder / "cmdline").read_text().split("\0")
                    if "slime_stages.slurm.inside" in words and wanted <= set(
                        (folder / "environ").read_text(errors="replace").split("\0")
                    ):
                        found.append(int(folder.name))
            return bool(found)

        self.until(is_there, f"process {number} of job {job}")
        return found[0]

    def spans(self, *tasks: str) -> dict[str, tuple[str, str]]:
        """When tasks began and ended, as accounting has it; its words for times are in order."""
        lines = self.cluster.run("sacct", "-n", "-X", "-P", f"--jobs={','.join(tasks)}", "--format=JobID,Start,End")
        return {task: (start, end) for task, start, end in (line.split("|") for line in lines.splitlines())}

    def report(self) -> str:
        """For a test that failed: the queue and what the jobs have said."""
        logs = "".join(
            f"--- {path.relative_to(self.run.root)}\n{path.read_text()[-1500:]}\n"
            for path in sorted((self.run.root / "jobs").rglob("*.err"))
            if path.stat().st_size
        )
        return f"{read_chain(self.run)}\n{self.cluster.run('squeue', '-r', '-t', 'all')}\n{logs[-12000:]}"

    def _is_over(self, target: int) -> bool:
        chain = read_chain(self.run)
        is_done = chain is not None and (chain.stopped is not None or first_incomplete(self.run) >= target)
        return is_done and not self.cluster.run("squeue", "-h", f"--name={job_name(self.run)}")

"""What a chain of jobs costs besides the stages' own time, beside a chain of the same sleeps written by hand.

    python -m benchmarks.chain --iterations 4 --shards 2 --seconds 3

Boots the tests' SLURM. Ours: `iter --executor slurm` on stages that sleep and commit. By hand: the same arrays and
jobs, all submitted at once with `afterany`, each a bash script that sleeps. A stage's own time is from the start of
its first process to the end of its last one's work; what is between the stages of an iteration is the chain's cost.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.sleeping import SECONDS, STAGES, write_package
from slime_stages.launch.chain import begin_chain
from slime_stages.launch.chain_state import Chain, read_chain
from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved
from tests.slurm.cluster import Cluster, ClusterSettings

ROOT = Path(__file__).parents[1]
HEADER = """#!/bin/bash
#SBATCH --cpus-per-task=1
#SBATCH --mem=500M
#SBATCH --time=00:10:00
exec {program} "$@"
"""
BY_HAND = """#!/bin/bash
#SBATCH --cpus-per-task=1 --mem=500M --time=00:10:00 --output=/dev/null
began=$(date +%s.%N)
sleep {seconds}
echo "$began $(date +%s.%N)" > {times}/{iteration}-{stage}-$SLURM_ARRAY_TASK_ID
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds between the stages of an iteration, beside plain sbatch")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="that each stage sleeps")
    args = parser.parse_args()

    with (
        tempfile.TemporaryDirectory(prefix="chain-") as name,
        Cluster.new(Path(name) / "c", ClusterSettings()) as slurm,
    ):
        os.environ.update(slurm.environment, PYTHONPATH=str(ROOT), **{SECONDS: str(args.seconds)})
        count = args.iterations * (2 * args.shards + 2)
        costs = {}
        for title, start in (("by hand", by_hand), ("slime-stages", ours)):
            times = start(Path(name) / title.replace(" ", "-"), args)
            wait(times, count)
            costs[title] = between_stages(times, args.iterations)
    print(f"{args.iterations} iterations of {args.shards} shards, {args.seconds} s a stage\n")
    print(f"{'':14} {'between the stages, s an iteration':>36}")
    for title, cost in costs.items():
        print(f"{title:14} {cost:36.2f}")
    print(f"{'ratio':14} {costs['slime-stages'] / costs['by hand']:36.2f}")


def by_hand(folder: Path, args: argparse.Namespace) -> Path:
    """Submit the whole chain with sbatch; the folder of the stages' times."""
    times = folder / "times"
    times.mkdir(parents=True)
    before = ""
    for iteration in range(args.iterations):
        for stage in STAGES:
            script = folder / "script.sh"
            script.write_text(BY_HAND.format(seconds=args.seconds, times=times, iteration=iteration, stage=stage))
            words = [f"--array=0-{args.shards - 1}"] if stage in ("rollout", "reward") else []
            words += [f"--dependency=afterany:{before}"] if before else []
            done = subprocess.run(
                ["sbatch", "--parsable", *words, str(script)], capture_output=True, text=True, check=True
            )
            before = done.stdout.strip()
    return times


def ours(folder: Path, args: argparse.Namespace) -> Path:
    """Begin a chain on stages that sleep; the folder of their times."""
    write_package(folder)
    for stage in (*STAGES, "chain"):
        program = f"{Path(sys.executable).with_name('slime-stages')} advance"
        program = program if stage == "chain" else f"{sys.executable} -m stages.{stage}"
        (folder / f"{stage}.sbatch").write_text(HEADER.format(program=program))
    settings = resolved(rollout_batch_size=4, n_samples_per_prompt=2, rollout_shards=args.shards)
    small = SmallRun(run=RunDir(folder / "run"), shards=args.shards, config=settings.config)
    small.start(make_model_folder(folder / "model"))
    for iteration in range(args.iterations):
        small.plan(iteration)
    os.chdir(folder)
    begin_chain(small.run, Chain(target=args.iterations, sbatch_folder=str(folder)))
    return small.run.root / "times"


def between_stages(times: Path, iterations: int) -> float:
    """Seconds an iteration, from the first stage's start to the last one's end, in which no stage was at work."""
    spans = []
    for iteration in range(iterations):
        for stage in STAGES:
            tasks = [tuple(map(float, p.read_text().split())) for p in times.glob(f"{iteration}-{stage}-*")]
            spans.append((min(task[0] for task in tasks), max(task[1] for task in tasks)))
    wall = spans[-1][1] - spans[0][0]
    return (wall - sum(end - begin for begin, end in spans)) / (iterations - 1 / len(STAGES))


def wait(times: Path, count: int) -> None:
    """Until so many tasks have noted their times."""
    run = RunDir(times.parent)
    while len(list(times.glob("*"))) < count:
        if run.chain_path.exists() and (chain := read_chain(run)) is not None and chain.stopped:
            sys.exit(f"the chain has stopped: {chain.stopped}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()

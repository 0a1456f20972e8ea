"""What an iteration of the quick start costs, part by part, beside TRL's `GRPOTrainer` on the same task.

    python benchmarks/iteration.py --iterations 3 --threads 2

The same model in float32, prompts, reward, number and length of samples, optimiser and steps on both sides, one after
the other in processes of their own. An iteration is what lies between two ends of iterations, the first one is not
counted. Ours also writes every sample, a checkpoint with the optimiser's state and the next weights, checked; TRL's
saves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from process_tree import ProcessTree

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "examples/quickstart/quickstart.toml"
STAGES = ("rollout", "reward", "train", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration of one side."""

    started: float
    """Seconds since 1970: the end of the iteration before."""

    finished: float

    parts: dict[str, float]
    """Seconds by part; they add up to the iteration."""

    figures: dict[str, float] = field(default_factory=dict)
    """Mean reward, and the share of the samples that went through the backward pass."""

    @property
    def seconds(self) -> float:
        return self.finished - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side did."""

    name: str
    start_seconds: float
    """From the start of the program to the end of its first iteration."""

    iterations: list[Iteration]
    """Without the first one."""

    cpu_seconds: float
    """Mean of an iteration, over all processes."""

    peak_bytes: int

    @property
    def seconds(self) -> float:
        return mean([iteration.seconds for iteration in self.iterations])


class SideFailedError(Exception):
    """A side's program did not end well."""


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds of an iteration of the quick start beside TRL's GRPOTrainer")
    parser.add_argument("--iterations", type=int, default=3, help="to measure, after one to warm up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="and cores, on both sides")
    parser.add_argument("--skip-trl", action="store_true")
    args = parser.parse_args()
    if not args.skip_trl and find_spec("trl") is None:
        sys.exit("error: TRL is not installed\n\nhint: pip install -e '.[bench]', or add --skip-trl")

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        try:
            sides = [measure_ours(Path(folder), args.iterations, args.threads)]
            if not args.skip_trl:
                sides.append(measure_trl(Path(folder), args.iterations, args.threads))
        except SideFailedError as error:
            sys.exit(str(error))
    print(f"mean of {args.iterations} iterations after one to warm up, {args.threads} threads; ", end="")
    print(f"the load average was {load:.1f} at the start\n")
    for side in sides:
        print_side(side)
    if len(sides) == 2:
        print_ratio(*sides)


def measure_ours(folder: Path, iterations: int, threads: int) -> Side:
    run = folder / "run"
    command = [str(Path(sys.executable).with_name("slime-stages")), "iter"]
    tree = watched(
        [*command, "--run", str(run), "--config", CONFIG, "--n", str(iterations + 1)], folder / "ours.log", threads
    )
    return side("slime-stages", tree, read_run(run))


def measure_trl(folder: Path, iterations: int, threads: int) -> Side:
    output = folder / "trl.json"
    command = [sys.executable, "-m", "benchmarks.trl_side", "--threads", str(threads), "--steps", str(iterations + 1)]
    tree = watched([*command, "--output", str(output)], folder / "trl.log", threads)
    return side("TRL", tree, [Iteration(**step) for step in json.loads(output.read_text())])


def watched(command: Sequence[str], log: Path, threads: int) -> ProcessTree:
    """Run a side from the root of the checkout; its log goes into the error if it fails."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait cost most beside other programs
    }
    tree = ProcessTree(command, environment=environment, output=log, folder=ROOT)
    if code := tree.run():
        raise SideFailedError(f"{log.read_text()[-4000:]}\n{' '.join(command)} ended with {code}")
    return tree


def side(name: str, tree: ProcessTree, iterations: list[Iteration]) -> Side:
    counted = iterations[1:]
    return Side(
        name=name,
        start_seconds=iterations[0].finished - tree.started,
        iterations=counted,
        cpu_seconds=tree.cpu_seconds(counted[0].started, counted[-1].finished) / len(counted),
        peak_bytes=tree.peak_bytes,
    )


def read_run(run: Path) -> list[Iteration]:
    """The iterations of a run, from the clocks in its manifests."""
    iterations: list[Iteration] = []
    for folder in sorted((run / "iterations").glob("[0-9]*")):
        if (folder / "sync" / "manifest.json").exists():  # the folder after the last holds an evaluation only
            previous = iterations[-1].finished if iterations else None
            iterations.append(read_iteration(folder, previous))
    return iterations


def read_iteration(folder: Path, previous: float | None) -> Iteration:
    """From the end of the iteration before, or from its own first stage, to the end of its last stage."""
    manifests = {
        stage: json.loads(path.read_text()) for stage in STAGES for path in sorted((folder / stage).glob("*.json"))
    }
    started = previous or min(seconds_of(each["started"]) for each in manifests.values())
    finished = max(seconds_of(each["finished"]) for each in manifests.values())
    parts: dict[str, float] = {}
    within = 0.0
    for stage, manifest in manifests.items():
        duration = seconds_of(manifest["finished"]) - seconds_of(manifest["started"])
        parts |= {f"{stage}: {part}": seconds for part, seconds in manifest["seconds"].items()}
        parts[f"{stage}: commit and other"] = duration - sum(manifest["seconds"].values())
        within += duration
    parts["between stages"] = finished - started - within
    metrics = manifests["train"]["metrics"]
    figures = {"mean reward": metrics["rollout/raw_reward"], "backward share": metrics["train/backward_share"]}
    return Iteration(started=started, finished=finished, parts=parts, figures=figures)


def seconds_of(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def print_side(side: Side) -> None:
    spread = ", ".join(f"{iteration.seconds:.2f}" for iteration in side.iterations)
    print(f"{side.name}: {side.seconds:.2f} s an iteration ({spread}), {side.cpu_seconds:.2f} s of CPU")
    for part in side.iterations[0].parts:
        seconds = mean([iteration.parts.get(part, 0.0) for iteration in side.iterations])
        print(f"  {part:30} {seconds:7.2f} s {seconds / side.seconds:6.1%}")
    for figure in side.iterations[0].figures:
        print(f"  {figure:30} {mean([iteration.figures[figure] for iteration in side.iterations]):7.2f}")
    print(f"  {'start to end of the first':30} {side.start_seconds:7.2f} s")
    print(f"  {'memory at the peak':30} {side.peak_bytes / 1e9:7.2f} GB\n")


def print_ratio(ours: Side, trl: Side) -> None:
    print(f"an iteration of ours takes {ours.seconds / trl.seconds:.2f} times TRL's, ", end="")
    print(f"{ours.cpu_seconds / trl.cpu_seconds:.2f} times its CPU time, ", end="")
    print(f"{ours.peak_bytes / trl.peak_bytes:.2f} times its memory")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()

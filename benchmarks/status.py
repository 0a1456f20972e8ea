"""What `slime-stages status` costs as a run grows: processor seconds of the command, for 100 and 1,000 iterations.

    python benchmarks/status.py --shards 64

A run of so many iterations and shards is made in a temporary folder: plans and manifests are ours, chained by digests
as stages chain them, the data files have the size that the manifests say. The command is measured as typed, start of
Python included: the first time, when it reads every manifest, and later, when it looks at the sizes and times of
manifests and folders, and of the newest iterations' data files, and compares them with its summaries. Best of three for
the latter. Last, a past iteration loses a data file, a manifest of it is altered, and another one's data file is cut in
its place, to see that these are still found, the last by `--all`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slime_stages.config import Config, resolve
from slime_stages.config.frozen import frozen_bytes
from slime_stages.launch.summaries import SETTLED_SECONDS
from slime_stages.lineage import shard_manifest_path, weights_content
from slime_stages.run.commit import create_file
from slime_stages.run.manifest import Manifest
from slime_stages.run.plan import Plan, plan_shards
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, config_digest
from slime_stages.weights.publish import publish_link

SETTINGS = ["--hf-checkpoint", "model", "--prompt-data", "prompts.jsonl", "--rm-type", "math"]
START, END = "2026-01-01T00:00:00.000+00:00", "2026-01-01T00:01:30.000+00:00"
DATA = b"x" * 64
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--iterations", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--shards", type=int, default=64)
    options = parser.parse_args()
    print(f"{options.shards} shards; processor seconds of `slime-stages status`, Python's start included")
    print(f"{'iterations':>10}  {'files':>9}  {'first time':>10}  {'later':>6}  {'later, wall-clock':>17}")
    later = []
    for iterations in options.iterations:
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(Path(folder), iterations, options.shards)
            time.sleep(SETTLED_SECONDS)
            first, _, _ = measure(run)
            rounds = [measure(run) for _ in range(ROUNDS)]
            best = min(cpu for cpu, _, _ in rounds)
            later.append(best)
            files = iterations * (4 * options.shards + 4)
            print(
                f"{iterations:>10,}  {files:>9,}  {first:>10.2f}  {best:>6.2f}  {min(w for _, w, _ in rounds):>17.2f}"
            )
            check(run, options.shards)
    if len(later) > 1:
        more = options.iterations[-1] / options.iterations[0]
        print(f"growth: {later[-1] / later[0]:.1f} times the processor time for {more:.0f} times the iterations")


def make_run(folder: Path, iterations: int, shards: int) -> RunDir:
    """A run all of whose iterations are complete."""
    model = folder / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    run = RunDir(folder / "run")
    sizes = ["--rollout-batch-size", str(shards), "--rollout-shards", str(shards), "--n-samples-per-prompt", "8"]
    config = resolve(None, [*SETTINGS, *sizes]).config
    publish_link(model, run.weights_path(0))
    create_file(run.config_revision_path(0), frozen_bytes(config))
    run.create()
    for iteration in range(iterations):
        make_iteration(run, config, iteration, shards)
    return run


def make_iteration(run: RunDir, config: Config, iteration: int, shards: int) -> None:
    plan = Plan(
        run_id=run.run_id(),
        iteration=iteration,
        config_revision=0,
        policy_version=iteration,
        prompts_digest="0",
        n_samples_per_prompt=8,
        seed=42,
        shuffle=False,
        shards=plan_shards(iteration * shards, shards, shards),
    )
    run.iteration_path(iteration).mkdir(parents=True)
    run.plan_path(iteration).write_bytes(plan.to_bytes())
    generated = {"plan": plan.digest, "weights": weights_content(run, iteration)}
    first = weights_content(run, 0) if iteration == 0 else f"policy {iteration}"
    trained = {"policy": first}
    for shard in range(shards):
        made, scored = f"rollout {iteration}/{shard}", f"reward {iteration}/{shard}"
        counts = {"issued": 1, "kept": 1, "dropped": 0, "carried": 0, "completed": 7, "truncated": 1}
        write(run, config, plan, "rollout", shard, generated, made, rows=8, tokens=8000, counts=counts)
        metrics = {"rollout/raw_reward": 0.5}
        write(run, config, plan, "reward", shard, {"rollout": made}, scored, counts={"scored": 8}, metrics=metrics)
        trained |= {f"rollout/{shard:05d}": made, f"reward/{shard:05d}": scored}
    policy = f"policy {iteration + 1}"
    write(run, config, plan, "train", None, trained, policy, metrics={"train/probs_diff": 0.001})
    write(run, config, plan, "sync", None, {"train": policy}, f"weights {iteration + 1}")


def write(
    run: RunDir,
    config: Config,
    plan: Plan,
    stage: str,
    shard: int | None,
    inputs: dict[str, str],
    content: str,
    **fields: object,
) -> None:
    """An output as committed, without the cost of making it survive a crash."""
    path = shard_manifest_path(run, plan, stage, shard)
    path.parent.mkdir(exist_ok=True)
    data = None if stage == "sync" else "samples.parquet" if stage == "train" else f"{path.stem}.parquet"
    if data is not None:
        path.with_name(data).write_bytes(DATA)
    call = StageCall(stage=stage, run=run.root, iteration=plan.iteration, shard=shard)
    manifest = Manifest(
        kind=stage,
        run_id=plan.run_id,
        iteration=plan.iteration,
        shard=shard,
        data=data,
        bytes=len(DATA) if data else 0,
        inputs=inputs,
        content=content,
        config_digest=config_digest(config, call),
        policy_version=plan.policy_version,
        started=START,
        finished=END,
        **fields,
    )
    path.write_bytes(manifest.to_bytes())


def measure(run: RunDir, *flags: str) -> tuple[float, float, str]:
    """(processor seconds, wall-clock seconds, output) of the command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "slime_stages.cli.main", "status", "--run", str(run.root), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, done.stdout


def check(run: RunDir, shards: int) -> None:
    """What goes missing or is altered in a past iteration is seen; cut data, by `--all`."""
    lost, cut = run.shard_path("rollout", 3, 1, shards), run.shard_path("rollout", 4, 1, shards)
    lost.unlink()
    os.truncate(cut, len(DATA) - 1)
    altered = run.manifest_path("reward", 3, 2, shards)
    altered.write_bytes(altered.read_bytes().replace(b'"scored": 8', b'"scored": 9'))
    _, _, text = measure(run)
    assert f"rollout 3/1 is corrupt: {lost} is gone" in text, text
    assert f"reward 3/2 is corrupt: {altered} was altered" in text, text
    _, _, text = measure(run, "--all")
    assert f"rollout 4/1 is corrupt: {cut} has {len(DATA) - 1} bytes" in text, text


if __name__ == "__main__":
    main()

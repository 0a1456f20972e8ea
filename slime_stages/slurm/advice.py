"""What a verdict's texts may name: the job, its nodes, its limits, and the commands that help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slime_stages.slurm.resources import clock, parse_time

if TYPE_CHECKING:
    from slime_stages.slurm.verdicts import TaskRun

MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
SETTINGS = {
    "rollout": "--sglang-server-concurrency",
    "reward": "--reward-workers, --reward-memory-gb",
    "train": "--micro-batch-size, --max-tokens-per-gpu",
}
"""Stage → the settings that bound the memory of its processes."""
SIZES = {
    "longest_response": "longest response {:,} tokens",
    "longest_sample": "longest sample {:,} tokens",
    "micro_batch_size": "micro-batch of {}",
    "max_tokens_per_gpu": "at most {:,} tokens in a forward pass",
    "samples_in_flight": "{:,} samples in flight",
    "reward_workers": "{} processes",
}
GPU_SETTINGS = {
    "rollout": "lower --sglang-mem-fraction-static or --sglang-server-concurrency",
    "train": "lower --micro-batch-size, or add --use-dynamic-batch-size --max-tokens-per-gpu TOKENS",
}


def words_of(run: TaskRun, exit_code: int) -> dict[str, str]:
    """By the name in braces."""
    attempt, info, told = run.attempt, run.info, run.told
    nodes = (info.nodes if info else "") or (told.node if told else "")
    signal = info.signal if info else 0
    how = f"was killed by signal {signal}" if signal else f"ended with exit code {exit_code}"
    return {
        "stage": attempt.stage,
        "job": info.job_id if info else attempt.job_id or "?",
        "state": info.state if info else "?",
        "why": info.reason if info else "",
        "nodes": nodes or "its node",
        "named": f" {nodes}" if nodes else "",
        "on_nodes": f" on {nodes}" if nodes else "",
        "message": told.message if told and told.message else how,
        "hint": told.hint if told and told.hint else logs(run),
        "logs": logs(run),
        "go_on": go_on(run),
        "sbatch": f"sbatch/{attempt.stage}.sbatch",
        "after": f" after {clock(spent)}" if (spent := seconds_spent(run)) else "",
        "longer": longer(run),
        "signal": f" by signal {signal}" if signal else "",
        "size": size(run),
        "memory_advice": memory_advice(run),
        "gpu_advice": gpu_advice(run),
    }


def go_on(run: TaskRun) -> str:
    """The command by which the chain goes on."""
    return f"slime-stages iter --n 0 --executor slurm --run {run_folder(run)}"


def logs(run: TaskRun) -> str:
    attempt = run.attempt
    shards = [shard for shard in attempt.shards if shard is not None]
    words = f"slime-stages logs {attempt.stage} --run {run_folder(run)} --iter {attempt.iteration}"
    words += f" --shard {run.shard}" if run.shard is not None and len(shards) > 0 else ""
    return words if attempt.split == "train" else f"{words} --eval {attempt.split}"


def run_folder(run: TaskRun) -> str:
    """RUN of RUN/jobs/000012-rollout/attempt-000."""
    return str(run.attempt.folder.parents[2])


def memory_advice(run: TaskRun) -> str:
    """Twice the memory, or the settings that need less of it."""
    stage, asked = run.attempt.stage, run.asked
    name = next((name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in asked), "mem")
    more = doubled_memory(str(asked[name])) if name in asked else "MORE"
    advice = f"{go_on(run)} --slurm-{stage}-{name} {more}"
    return f"{advice}, or lower {SETTINGS[stage]}" if stage in SETTINGS else advice


def gpu_advice(run: TaskRun) -> str:
    setting = GPU_SETTINGS.get(run.attempt.stage)
    return f"{setting}, with --change-config, then {go_on(run)}" if setting else logs(run)


def size(run: TaskRun) -> str:
    """`; longest response 31,240 tokens, micro-batch of 4`, as far as it is known."""
    known = {**run.sizes, **(run.end.extra if run.end else {})}
    parts = [text.format(known[name]) for name, text in SIZES.items() if isinstance(known.get(name), int)]
    return f"; {', '.join(parts)}" if parts else ""


def longer(run: TaskRun) -> str:
    """Twice the time limit; twice the time spent where the limit is not known."""
    seconds = parse_time(str(run.asked.get("time", ""))) or seconds_spent(run)
    return clock(2 * seconds) if seconds else "LONGER"


def seconds_spent(run: TaskRun) -> int:
    info = run.info
    return round(info.ended - info.started) if info and info.started and info.ended else 0


def doubled_memory(text: str) -> str:
    match = MEMORY.fullmatch(text.strip())
    return f"{2 * int(match[1])}{match[2].upper()}" if match and int(match[1]) else "MORE"

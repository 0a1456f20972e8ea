"""Whether jobs of slime-stages would work here: one finding after the other, each with what to do about it.

for finding in examine(Path("runs/gsm8k").absolute(), sbatch=Path("sbatch")):
    print(finding.level, finding.text)
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping
from pathlib import Path

from slime_stages.errors import RetryableError, SlimeStagesError, UsageError
from slime_stages.slurm.commands import SchedulerMissing, call_scheduler
from slime_stages.slurm.environment import submission_environment
from slime_stages.slurm.findings import PROBLEM, Finding, advice, fine, problem
from slime_stages.slurm.header import Header, read_header, with_overrides
from slime_stages.slurm.machine import collect_facts, room_in
from slime_stages.slurm.node_findings import examine_nodes
from slime_stages.slurm.queue import Limits, read_limits

STAGES = ("rollout", "reward", "train", "sync")
CHAIN = "chain"
"""Its header may be left out."""

WAIT_SECONDS = 120.0
GIBIBYTE = 2**30
LEAST_FREE, ENOUGH_FREE = 1 * GIBIBYTE, 20 * GIBIBYTE
LEAST_INODES, ENOUGH_INODES = 1_000, 100_000
FEW_JOBS = 100
"""An iteration of 16 shards queues about 34 tasks, and some iterations are queued ahead."""


def examine(
    folder: Path,
    *,
    sbatch: Path,
    overrides: Mapping[str, str | bool] | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> Iterator[Finding]:
    """Look at this machine, the scheduler, the headers and, by a small job, at a compute node.

    `folder` is an absolute path, of a run or where runs will be; `wait_seconds` is how long a small job may take.
    """
    here = collect_facts()
    folder = next(path for path in (folder, *folder.parents) if path.is_dir())  # a run that has not begun has none
    yield from examine_room(folder)
    yield fine(f"Python {here.python} here ({here.executable}), {len(here.packages)} packages")
    headers = []
    for stage in (*STAGES, CHAIN):
        if stage in STAGES or (sbatch / f"{stage}.sbatch").exists():
            try:
                headers.append(with_overrides(read_header(sbatch / f"{stage}.sbatch", stage), overrides or {}))
            except SlimeStagesError as error:
                yield problem(error)
    try:
        limits = read_limits()
    except SchedulerMissing:
        yield from _without_scheduler(headers)
        return
    except SlimeStagesError as error:
        yield problem(error)
        return
    yield from examine_limits(limits)
    accepted = []
    for header in headers:
        finding = examine_header(header)
        yield finding
        if finding.level != PROBLEM:
            accepted.append(header)
    yield from examine_nodes(accepted, folder, wait_seconds)


def examine_room(folder: Path) -> Iterator[Finding]:
    room = room_in(folder)
    free = f"{room.bytes / GIBIBYTE:.1f} GiB free in {folder}"
    if room.bytes < LEAST_FREE:
        yield problem(RetryableError(f"only {free}", hint=f"df -h {folder}; free some space"))
    elif room.bytes < ENOUGH_FREE:
        yield advice(f"{free}: a checkpoint of a 7B model takes 100 GiB", f"df -h {folder}")
    else:
        yield fine(free)
    if room.inodes is not None and room.inodes < LEAST_INODES:
        text = f"only {room.inodes} more files fit into the file system of {folder}"
        yield problem(RetryableError(text, hint=f"df -i {folder}; delete some"))
    elif room.inodes is not None and room.inodes < ENOUGH_INODES:
        text = f"{room.inodes} more files fit into the file system of {folder}; a thousand iterations write 100,000"
        yield advice(text, f"df -i {folder}")


def examine_limits(limits: Limits) -> Iterator[Finding]:
    yield fine(f"SLURM {limits.version} answers (cluster {limits.cluster})")
    if limits.has_accounting:
        yield fine("accounting is on")
    else:
        minutes = limits.min_job_age_seconds / 60
        text = (
            f"accounting is off: how a job ended is known for {minutes:.0f} minutes only, lost nodes are not excluded"
        )
        yield advice(text, "nothing to do: files say what is finished")
    yield fine(f"arrays have up to {limits.max_array_size - 1} tasks; larger ones are split")
    least = min(job_limits().items(), key=lambda item: item[1], default=None)
    if least is not None and least[1] < FEW_JOBS:
        text = f"only {least[1]} jobs of yours may be in the queue at once ({least[0]}); each shard counts"
        yield advice(text, "slime-stages iter --lookahead 1, or fewer --rollout-shards")
    elif least is not None:
        yield fine(f"up to {least[1]} jobs of yours may be in the queue at once ({least[0]})")


def job_limits() -> dict[str, int]:
    """How many jobs this user may have in the queue, by whose limit that is; empty if accounting does not tell."""
    user = f"user={getpass.getuser()}"
    fields = "format=account,partition,qos,maxsubmit,grpsubmit"
    answer = call_scheduler(["sacctmgr", "-n", "-P", "show", "assoc", "where", user, fields])
    limits, services = {}, set()
    for line in answer.stdout.splitlines() if answer.exit_code == 0 else ():
        account, partition, services_listed, *counts = line.split("|")
        services |= set(services_listed.split(","))
        for count in filter(str.isdigit, counts):
            limits[f"account {account}" + (f", partition {partition}" if partition else "")] = int(count)
    answer = call_scheduler(["sacctmgr", "-n", "-P", "show", "qos", "format=name,maxsubmitjobsperuser"])
    for line in answer.stdout.splitlines() if answer.exit_code == 0 else ():
        name, _, count = line.partition("|")
        if name in services and count.isdigit():
            limits[f"QOS {name}"] = int(count)
    return limits


def examine_header(header: Header) -> Finding:
    """Ask sbatch about a job with the header's options, without submitting it."""
    words = [f"--{option}" if value is True else f"--{option}={value}" for option, value in header.directives.items()]
    environment = submission_environment(header.directives)
    answer = call_scheduler(["sbatch", "--test-only", *words, "--wrap=true"], environment=environment)
    if answer.exit_code == 0:
        return fine(f"{header.path} is accepted")
    text = f"{header.place_of_refusal(answer.stderr)}: sbatch refuses {' '.join(words)}: {answer.complaint}"
    return problem(UsageError(text, hint=f"edit it, or give --slurm-{header.stage}-OPTION VALUE"))


def _without_scheduler(headers: list[Header]) -> Iterator[Finding]:
    """What can be seen all the same: the headers, and the programs on this machine."""
    for header in headers:
        yield fine(f"{header.path} can be read; only sbatch knows whether it is accepted")
    facts = collect_facts(STAGES)
    for stage, error in facts.broken_imports.items():
        text = f"the program of {stage} cannot be loaded here: {error}"
        yield problem(UsageError(text, hint=f"install it for {facts.executable}"))
    hint = "type it again on a login node; without SLURM, slime-stages iter runs the stages on this machine"
    yield problem(
        UsageError("there is no SLURM on this machine: no scheduler and no compute node was looked at", hint=hint)
    )

"""What `doctor` finds on compute nodes, by small jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from slime_stages.errors import MissingInputError, RetryableError, UsageError
from slime_stages.slurm.canary import Canary, Sighting, group_headers, remove_canary, submit_canary, watch_canary
from slime_stages.slurm.commands import call_scheduler
from slime_stages.slurm.environment import OFFLINE
from slime_stages.slurm.findings import OK, Finding, advice, fine, problem
from slime_stages.slurm.header import Header
from slime_stages.slurm.machine import PORTS_TRIED, Facts, collect_facts

DIFFERENCES_SHOWN = 5


def examine_nodes(headers: list[Header], folder: Path, wait_seconds: float) -> Iterator[Finding]:
    """One small job for each place and set-up that the headers name."""
    canaries: list[Canary] = []
    try:
        for group in group_headers(headers):
            canaries.append(submit_canary(group, folder))
        if canaries:
            print(f"waiting up to {wait_seconds:.0f} s for {len(canaries)} small job(s)", file=sys.stderr, flush=True)
        for canary in canaries:
            yield from _in_one_line(canary, list(_describe(canary, folder, wait_seconds)))
    finally:
        for canary in canaries:
            if canary.job_id:
                call_scheduler(["scancel", canary.job_id])
            remove_canary(canary)


def _in_one_line(canary: Canary, findings: list[Finding]) -> Iterator[Finding]:
    """Nobody reads much about what is well."""
    yield from (finding for finding in findings if finding.level != OK)
    good = [finding.text for finding in findings if finding.level == OK]
    if good:
        yield fine(f"jobs of {canary.stages}: {'; '.join(good)}")


def _describe(canary: Canary, folder: Path, wait_seconds: float) -> Iterator[Finding]:
    path = canary.headers[0].path
    if canary.refusal is not None:
        yield problem(UsageError(f"{path}: sbatch refuses a small job: {canary.refusal}", hint=f"edit {path}"))
        return
    try:
        seen = watch_canary(canary, wait_seconds=wait_seconds)
    except RetryableError as error:
        yield problem(error)
        return
    job = seen.job
    if job is not None and job.is_live:
        waited = f"a small job for {canary.stages} was {job.state} ({job.reason or 'no reason given'})"
        yield problem(
            RetryableError(
                f"no compute node was looked at: {waited} for {wait_seconds:.0f} s",
                hint=f"slime-stages doctor --wait {10 * wait_seconds:.0f}",
            )
        )
        return
    node = seen.node or (job.nodes if job is not None else "") or "a compute node"
    if seen.node is None or not seen.saw_our_file:
        hint = "choose a folder on storage that all nodes share (--run RUN)"
        ended = f"; the job ended {job.state}: {seen.log or job.reason}" if job is not None else ""
        yield problem(MissingInputError(f"{folder} is not seen from {node}{ended}", hint=hint))
        return
    late = f", {seen.hidden_seconds:.0f} s late" if seen.hidden_seconds else ""
    yield fine(f"{node} sees {folder}{late}")
    yield from _describe_node(seen, node, canary)


def _describe_node(seen: Sighting, node: str, canary: Canary) -> Iterator[Finding]:
    header, facts = canary.headers[0], seen.facts
    if facts is None:
        text = f"{header.path}: its set-up, or Python after it, fails on {node}: {seen.log or 'it printed nothing'}"
        yield problem(UsageError(text, hint=f"edit the set-up lines of {header.path}"))
        return
    for stage, error in facts.broken_imports.items():
        text = f"the program of {stage} cannot be loaded on {node}: {error}"
        yield problem(UsageError(text, hint=f"install it for {facts.executable}, or edit {header.path}"))
    if not facts.broken_imports:
        yield fine(f"Python {facts.python} there loads their programs")
    yield from compare_packages(collect_facts(), facts, f"the Python that {header.path} starts on {node}")
    yield from examine_network(facts, node, header.path)
    if facts.submit_error is None:
        yield fine("they may submit others")
    else:
        text = f"jobs on {node} may not submit jobs: {facts.submit_error}"
        yield problem(UsageError(text, hint="type slime-stages iter --executor slurm --drive here, and let it run"))


def compare_packages(here: Facts, there: Facts, what: str) -> Iterator[Finding]:
    """Other versions may read what this one writes otherwise."""
    own, theirs = ({**facts.packages, "Python": facts.python} for facts in (here, there))
    different = [
        f"{name} {theirs.get(name, 'missing')}, not {own.get(name, 'missing')}"
        for name in sorted({*own, *theirs})
        if own.get(name) != theirs.get(name)
    ]
    if different:
        more = f" and {len(different) - DIFFERENCES_SHOWN} more" * (len(different) > DIFFERENCES_SHOWN)
        text = f"{what}, {there.executable}, has {'; '.join(different[:DIFFERENCES_SHOWN])}{more}"
        yield advice(text, f"this one is {here.executable}; start the same environment in the set-up lines")
    else:
        yield fine(f"{len(there.packages)} packages as here")


def examine_network(facts: Facts, node: str, header: Path) -> Iterator[Finding]:
    online = [f"{name}={facts.offline.get(name, '')}" for name in OFFLINE if facts.offline.get(name) != OFFLINE[name]]
    if online:
        text = f"libraries may try the network on {node}: {', '.join(online)}"
        yield advice(text, f"fine if {node} has one; else edit {header}")
    else:
        yield fine("libraries stay off the network")
    if facts.port_error is None and facts.name_error is None:
        yield fine(f"{PORTS_TRIED} ports are free and the name {facts.host} is known")
    for error in filter(None, (facts.port_error, facts.name_error)):
        yield problem(UsageError(f"processes on {node} cannot reach each other: {error}", hint="ask whoever runs it"))

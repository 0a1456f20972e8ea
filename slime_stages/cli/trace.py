"""`slime-stages trace`: when samples were generated, called tools and were scored, as a Chrome trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.cli.show import EvalName, Iteration, Shard, named_samples
from slime_stages.errors import MissingInputError, UsageError

if TYPE_CHECKING:
    from slime_stages.run.plan import Plan
    from slime_stages.run.rundir import RunDir
    from slime_stages.trace.chrome import Track

SampleNames = Annotated[
    list[str] | None,
    typer.Option("--sample", metavar="SAMPLE", help="Its index, or ITERATION/SHARD/ROW; may be given several times."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="[default: stdout]")]


def command(
    run: RunFolder = None,
    iteration: Iteration = None,
    shard: Shard = None,
    split: EvalName = None,
    samples: SampleNames = None,
    output: Output = None,
) -> None:
    """Write the spans of an iteration's samples as JSON for chrome://tracing or https://ui.perfetto.dev."""
    import orjson

    from slime_stages.reading.lookup import newest_plan, plan_of
    from slime_stages.run.rundir import find_run
    from slime_stages.trace.chrome import chrome_trace

    if samples and shard is not None:
        raise UsageError("--sample says which shard", hint="leave --shard out")
    run_dir, split = find_run(run), split or "train"
    if samples:
        plan, tracks = tracks_of_samples(run_dir, samples, iteration, split)
    else:
        plan = newest_plan(run_dir, split) if iteration is None else plan_of(run_dir, iteration, split)
        tracks = tracks_of_shards(run_dir, plan, shard)
    if not tracks:
        raise MissingInputError(
            f"the samples of iteration {plan.iteration} were made without traces",
            hint="trace_samples = true under [rollout], and another iteration",
        )
    text = orjson.dumps(chrome_trace(tracks), option=orjson.OPT_APPEND_NEWLINE)
    if output is None:
        sys.stdout.buffer.write(text)
    else:
        output.write_bytes(text)
        print(f"{output}: {len(tracks)} samples of iteration {plan.iteration}", file=sys.stderr)


def tracks_of_shards(run: RunDir, plan: Plan, shard: int | None) -> list[Track]:
    from slime_stages.reading.lookup import committed_shards
    from slime_stages.reading.sample_traces import tracks_of

    return tracks_of(run, plan, committed_shards(run, plan, shard), None)


def tracks_of_samples(run: RunDir, names: list[str], iteration: int | None, split: str) -> tuple[Plan, list[Track]]:
    """Of samples of one iteration."""
    from slime_stages.reading.sample_traces import tracks_of

    found = [item for name in names for item in named_samples(run, name, None if "/" in name else iteration, split)]
    iterations = sorted({item.plan.iteration for item in found})
    if len(iterations) > 1:
        raise UsageError(
            f"these samples are of the iterations {', '.join(map(str, iterations))}", hint="one command for each"
        )
    plan = found[0].plan
    return plan, tracks_of(run, plan, {item.shard for item in found}, {(item.shard, item.row) for item in found})

"""`slime-stages explain`: the way of one sample through the run."""

from __future__ import annotations

from typing import Annotated

import typer

from slime_stages.cli.options import RunFolder

SampleName = Annotated[str, typer.Argument(metavar="SAMPLE", help="Its index, or ITERATION/SHARD/ROW.")]
Iteration = Annotated[int | None, typer.Option("--iter", metavar="I", min=0, help="Iteration. [default: all of them]")]
EvalName = Annotated[str | None, typer.Option("--eval", metavar="NAME", help="A sample of an evaluation set.")]


def command(sample: SampleName, run: RunFolder = None, iteration: Iteration = None, split: EvalName = None) -> None:
    """Follow a sample: prompt, weights, shard, rewards, advantage, optimizer step, and the weights that came of it.

    `show` prints its texts and tokens.
    """
    from slime_stages.cli.sample_text import RULE, say
    from slime_stages.cli.show import named_samples
    from slime_stages.cli.tables import make_console
    from slime_stages.reading.provenance import links_of
    from slime_stages.run.rundir import find_run

    run_dir, console = find_run(run), make_console()
    for position, item in enumerate(named_samples(run_dir, sample, iteration, split or "train")):
        if position:
            say(console, RULE, style="dim")
        say(console, f"sample {item.plan.iteration}/{item.shard}/{item.row}", style="bold")
        links = links_of(run_dir, item)
        width = max(len(link.title) for link in links)
        for link in links:
            say(console, f"{link.title:<{width}}  {link.text}")
            if link.made:
                say(console, f"{'':<{width}}  {link.made}", style="dim")

"""`slime-stages doctor`: whether jobs would work on this cluster, before any is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slime_stages.cli.options import RunFolder
from slime_stages.cli.slurm_options import slurm_options, takes_slurm_options

SbatchFolder = Annotated[
    Path, typer.Option("--sbatch", metavar="FOLDER", help="Where rollout.sbatch and the other headers are.")
]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long a small job may take.")]

STYLES = {"ok": "green", "advice": "yellow", "problem": "red"}


@takes_slurm_options
def command(
    ctx: typer.Context, run: RunFolder = None, sbatch: SbatchFolder = Path("sbatch"), wait: Wait = 120.0
) -> int:
    """Check scheduler, headers, shared folder, Python on a compute node, room on the disk; say what to do."""
    from slime_stages.cli.tables import make_console
    from slime_stages.slurm.doctor import examine
    from slime_stages.slurm.findings import exit_code_of

    console = make_console()
    folder = run.absolute() if run is not None else Path.cwd()
    findings = []
    for finding in examine(folder, sbatch=sbatch, overrides=slurm_options(ctx), wait_seconds=wait):
        findings.append(finding)
        console.print(f"{finding.level:8}", style=STYLES[finding.level], end="")
        console.print(finding.text, soft_wrap=True, markup=False, highlight=False)
        if finding.hint:
            console.print(f"{'':8}→ {finding.hint}", style="dim", soft_wrap=True, markup=False, highlight=False)
    return exit_code_of(findings)

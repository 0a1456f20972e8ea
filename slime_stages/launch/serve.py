"""`slime-stages serve`: engines in a job of their own, which rollout jobs use and sync gives new weights.

They are a cache: a rollout that finds nobody starts its own. Nothing of the run depends on how this ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from slime_stages.drain import Drained
from slime_stages.errors import InternalError, MissingInputError, RetryableError, SlimeStagesError
from slime_stages.launch.start_run import current_revision
from slime_stages.run.rundir import RunDir
from slime_stages.serving.devices import visible_devices
from slime_stages.serving.fleet import Fleet
from slime_stages.serving.layout import layout_of
from slime_stages.serving.options import own_host
from slime_stages.serving.registry import SERVICE, register_fleet
from slime_stages.slurm.header import read_header, with_overrides
from slime_stages.slurm.jobs import Attempt, attempts_of, claim_attempt
from slime_stages.stage import StageCall, read_config, say
from slime_stages.weights.publish import published_versions, verify_weights
from slime_stages.weights.record import engine_label

STAGE = "serve"
POLL_SECONDS = 1.0


def serve_call(call: StageCall) -> Path:
    """The same for a submitted job; the path of its record, which is gone by then."""
    return serve(RunDir(call.run))


def serve(run: RunDir) -> Path:
    """Serve the run's newest weights until a signal says to end, which is no failure.

    InternalError if no engine is left.
    """
    config = read_config(run, current_revision(run))
    version = max(published_versions(run.weights_path(0).parent), default=None)
    if version is None:
        raise MissingInputError(f"{run.root} has no weights to serve", hint=f"slime-stages iter --n 0 --run {run.root}")
    weights = run.weights_path(version)
    verify_weights(weights)
    name = f"{SERVICE}-{os.environ.get('SLURM_JOB_ID') or os.getpid()}"
    fleet = Fleet(
        config=config,
        layout=layout_of(config, visible_devices()),
        weights=weights,
        label=engine_label(weights, version),
        log=run.log_path,
        log_name=f"engine-{name}",
        host=own_host(),
    )
    path = run.engines_path / f"{name}.json"
    fleet.on_change = lambda: _register(run, name, fleet)
    try:
        with fleet:
            _register(run, name, fleet)
            served = fleet.served()
            say(f"serving weights {version} at {served.urls[0]} ({served.engine_count} engines); {path}")
            _wait(fleet)
    except Drained as drained:
        say(f"the service ends ({drained.reason})")
    finally:
        path.unlink(missing_ok=True)
    return path


def submit_service(run: RunDir, *, sbatch: Path, overrides: Mapping[str, str | bool]) -> Attempt:
    """Have SLURM keep the engines, as sbatch/serve.sbatch says."""
    from slime_stages.slurm.submission import Submission
    from slime_stages.slurm.submit import submit_attempt

    header = with_overrides(read_header(sbatch / "serve.sbatch", STAGE), overrides)
    number = max((attempt.number for attempt in attempts_of(run, STAGE, 0)), default=-1) + 1
    attempt = claim_attempt(run, STAGE, 0, after=number)
    if attempt is None:
        raise RetryableError(
            "another process is submitting the service at this moment",
            hint=f"slime-stages logs serve --run {run.root}",
        )
    return submit_attempt(Submission(run=run, attempt=attempt, header=header))


def _wait(fleet: Fleet) -> None:
    """Until a signal ends it, or nothing is left to serve."""
    while True:
        time.sleep(POLL_SECONDS)
        if all(fleet.is_lost(member) for member in fleet.members):
            raise InternalError(
                "no engine is left to serve", hint=f"less {fleet.members[0].engine.log}   and slime-stages serve again"
            )


def _register(run: RunDir, name: str, fleet: Fleet) -> None:
    with suppress(SlimeStagesError):
        register_fleet(
            run.engines_path,
            name,
            fleet.served(),
            updated_urls=fleet.updated_urls(),
            kind=SERVICE,
            weight_version=fleet.label,
            has_gpus=bool(fleet.layout.devices),
        )

"""What a run's chain of jobs is to do: `RUN/chain.json`, whose last version counts.

How far it has got is not in here: that is read from the manifests, the jobs' folders and the scheduler.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from slime_stages.errors import DataError
from slime_stages.run.commit import replace_file
from slime_stages.run.digest import sealed, unsealed
from slime_stages.run.rundir import RunDir

if TYPE_CHECKING:
    from slime_stages.slurm.header import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Iterations wanted, and how their jobs are to be submitted."""

    target: int
    """One past the last iteration."""
    sbatch_folder: str
    """Absolute; holds `rollout.sbatch` and the others."""
    lookahead: int = 2
    """Iterations whose jobs are in the queue at once."""
    overrides: dict[str, str | bool] = field(default_factory=dict)
    """sbatch options in place of the headers'; `train.mem` for one stage's."""
    array_parallelism: int | None = None
    """Tasks of an array that run at once; None: as many as there is room for."""
    max_retries: int = 2
    """Counted retries of one shard or stage."""
    accept_stale: bool = False
    is_driven: bool = False
    """One process of its own submits everything; jobs do not, as they may not on some clusters."""
    begun: float = 0.0
    """Unix time of the last `iter`: what failed before it does not count against retries."""
    stopped: str | None = None
    """Why nothing is submitted any more."""
    advice: str | None = None
    """What to do about it."""


def chain_begun_now(chain: Chain) -> Chain:
    """The chain as a person starts it: nothing counts against it yet."""
    return replace(chain, begun=time.time(), stopped=None, advice=None)


def chain_header(chain: Chain, stage: str) -> Header:
    """The stage's header with the chain's overrides."""
    from slime_stages.slurm.header import read_header, with_overrides

    return with_overrides(read_header(Path(chain.sbatch_folder) / f"{stage}.sbatch", stage), chain.overrides)


def read_chain(run: RunDir) -> Chain | None:
    """None if the run never had one. DataError if the file was altered."""
    path = run.chain_path
    try:
        return Chain(**unsealed(orjson.loads(path.read_bytes()), path))
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, TypeError, AttributeError) as error:
        again = f"slime-stages iter --executor slurm --n 0 --run {run.root}"
        raise DataError(f"{path} is no chain: {error}", hint=f"rm {path}, then {again}") from error


def write_chain(run: RunDir, chain: Chain) -> None:
    replace_file(run.chain_path, orjson.dumps(sealed(asdict(chain)), option=orjson.OPT_INDENT_2))


def stop_chain(run: RunDir, reason: str, advice: str | None = None) -> None:
    """Have nothing more submitted; jobs that run are left alone. The first reason counts."""
    chain = read_chain(run)
    if chain is not None and chain.stopped is None:
        write_chain(run, replace(chain, stopped=reason, advice=advice))

"""Several trainer processes on this machine, under torchrun: start them, wait, and pass on how they ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

from slime_stages.errors import InternalError, SlimeStagesError
from slime_stages.stage import Stage

_TORCHRUN = (
    "from stages.train.worker import end_with; end_with({stage}); from torch.distributed.run import main; main()"
)
"""torchrun, which ends with this process, however that ends; its workers do too."""


def run_processes(stage: Stage) -> Path:
    """Run `stages.train.worker` in every trainer process of the config; returns the manifest's path.

    Raises the error of the first process that told one; InternalError if one died without a word.
    """
    with tempfile.TemporaryDirectory(prefix="slime-stages-train-") as folder:
        told = Path(folder) / "error.json"
        command = [
            *(sys.executable, "-c", _TORCHRUN.format(stage=os.getpid()), "--standalone", "--no-python"),
            f"--nproc-per-node={stage.config.train.actor_num_gpus_per_node}",
            *(sys.executable, "-m", "stages.train.worker", stage.call.to_json(), str(told), str(os.getpid())),
        ]
        environment = {"OMP_NUM_THREADS": str(_threads(stage)), "OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        code = subprocess.run(command, stdout=2, env=environment, check=False).returncode
        if told.exists():
            error = orjson.loads(told.read_bytes())
            raise SlimeStagesError.with_exit_code(error["exit_code"], error["message"], hint=error["hint"])
    if code:
        raise InternalError(f"the trainer processes ended with {code}", hint="their last lines are above")
    return stage.manifest_path


def _threads(stage: Stage) -> int:
    return max(1, (os.cpu_count() or 1) // stage.config.train.actor_num_gpus_per_node)

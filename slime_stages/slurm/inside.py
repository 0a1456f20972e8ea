"""What runs in a task of a submitted job: `python -m slime_stages.slurm.inside RUN/jobs/000012-rollout/attempt-000`.

stdout gets the path of the manifest, stderr everything else, `end-00003.json` how it ended, and SLURM our exit code.
Of several processes of a job each makes the call, and the first one does the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from slime_stages.drain import Drained, install_drain, uninterrupted
from slime_stages.errors import SlimeStagesError
from slime_stages.plugins import load_function
from slime_stages.run.announce import told_on_the_way
from slime_stages.run.commit import wait_for_file
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.environment import OFFLINE
from slime_stages.slurm.jobs import CHAIN_STAGE, Attempt, TaskEnd, attempts_of, read_attempt, read_end, write_end
from slime_stages.slurm.limits import task_id
from slime_stages.slurm.peers import failure_of_a_peer, is_first_process, leave_after_first, may_be_ended_by_a_peer
from slime_stages.slurm.requeue import progress_of, requeue_self
from slime_stages.stage import finish_deferred, say

RESULT_OF = "slime_stages.launch.run_stage:result_of"
ADVANCE = "slime_stages.launch.chain:advance"
"""By name: the launcher stands above."""

NEXT = {"train": ("sync", 0), "sync": ("rollout", 1)}
"""Stages whose jobs look after the chain at their end → what must be queued by then, and how many iterations on."""

LOOK_SECONDS = 120.0
"""How long a rollout that has ended waits for its look at the chain."""

EXIT_DRAINED, EXIT_OUR_FAULT = 75, 70


def run_task(folder: str, task: int) -> int:
    """Do the call of a task; its exit code."""
    start = (Path.cwd(), dict(os.environ))
    install_drain()
    os.environ.update({name: value for name, value in OFFLINE.items() if name not in os.environ})
    path = Path(folder)
    try:
        wait_for_file(path / "job.json", what="the job's record", hint="it was deleted: let the chain make another")
        attempt = read_attempt(path)
    except (SlimeStagesError, Drained) as error:
        say(f"error: {error}")
        return error.exit_code if isinstance(error, SlimeStagesError) else EXIT_DRAINED
    run, shard = RunDir(path.parents[2]), attempt.shards[task]
    with _queueing_ahead(attempt, run, task, start), _looking_on_the_way(run, start):
        end = TaskEnd(exit_code=0) if attempt.stage == CHAIN_STAGE else _work(attempt, run, shard)
    with uninterrupted(last=True):
        end = replace(
            end,
            node=os.environ.get("SLURMD_NODENAME", os.uname().nodename),
            restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            job_id=task_id() or "",
            finished=time.time(),
        )
        if end.exit_code:
            say(f"error: {end.message}" + (f"\n\nhint: {end.hint}" if end.hint else ""))
        if not is_first_process():
            return leave_after_first(attempt, shard, end)
        return _finish(attempt, run, shard, end, start)


def _work(attempt: Attempt, run: RunDir, shard: int | None) -> TaskEnd:
    """Make the call; how it ended."""
    call = attempt.call(run, shard)
    try:
        with _stdout_on_stderr():
            result = load_function(RESULT_OF)(call)
        if result.manifest and is_first_process():
            print(result.manifest, flush=True)
        if result.exit_code == 0:
            finish_deferred()
    except Drained as drained:
        return TaskEnd(exit_code=EXIT_DRAINED, message=drained.message)
    except Exception as error:  # what was put off has failed; the stage turns its own errors into results
        traceback.print_exc()
        return TaskEnd(exit_code=EXIT_OUR_FAULT, message=f"{call.title} failed at its end: {error}")
    return TaskEnd(exit_code=result.exit_code, message=result.message, hint=result.hint)


def _finish(
    attempt: Attempt, run: RunDir, shard: int | None, end: TaskEnd, start: tuple[Path, Mapping[str, str]]
) -> int:
    """Tell the end, go back into the queue if that helps, and see to the chain; the exit code."""
    end = failure_of_a_peer(attempt, shard, end) or end
    if attempt.stage != CHAIN_STAGE:
        end = replace(end, progress=progress_of(run, attempt.call(run, shard)))
    _tell(attempt, shard, end)
    is_drained = end.exit_code == EXIT_DRAINED and not may_be_ended_by_a_peer()
    if (is_drained and requeue_self()) or not needs_a_look(attempt, run, end):
        return end.exit_code
    failure = _advance(run, start)
    if failure is None:
        return end.exit_code
    say(f"error: the chain was not extended: {failure.message}" + (f"\n\nhint: {failure.hint}" if failure.hint else ""))
    _tell(attempt, shard, replace(end, extra={"advance": failure.message}))
    return end.exit_code or failure.exit_code


def needs_a_look(attempt: Attempt, run: RunDir, end: TaskEnd) -> bool:
    """Whether the chain could come to a halt here. Where all went well the next job waits for this one to be gone."""
    if attempt.until is not None:
        return True
    if attempt.stage not in NEXT or end.exit_code:
        return attempt.stage == CHAIN_STAGE or attempt.stage in NEXT
    stage, ahead = NEXT[attempt.stage]
    return not any(known.job_id for known in attempts_of(run, stage, attempt.iteration + ahead))


@contextmanager
def _queueing_ahead(attempt: Attempt, run: RunDir, task: int, start: tuple[Path, Mapping[str, str]]) -> Iterator[None]:
    """Have the chain's next jobs queued beside the work of an iteration's first task, where nobody waits for it."""
    if (attempt.stage, attempt.split, task) != ("rollout", "train", 0) or not run.chain_path.exists():
        yield
        return
    with _look(run, start) as looking:
        try:
            yield
            with suppress(subprocess.TimeoutExpired):
                looking.wait(LOOK_SECONDS)
        finally:
            looking.kill()


@contextmanager
def _looking_on_the_way(run: RunDir, start: tuple[Path, Mapping[str, str]]) -> Iterator[None]:
    """Have the chain submit what reads an output as soon as a job that goes on after it has committed it; and mend what
    such a job waits for in vain."""
    looks: list[subprocess.Popen[bytes]] = []

    def look(manifest: Path | None) -> None:
        looks[:] = [one for one in looks if one.poll() is None]
        if manifest is not None:
            say(str(manifest))
        elif looks:
            return
        if run.chain_path.exists():
            looks.append(_look(run, start))

    with told_on_the_way(look):
        try:
            yield
        finally:
            for one in looks:
                with suppress(subprocess.TimeoutExpired):
                    one.wait(LOOK_SECONDS)
                one.kill()
                one.wait()


def _look(run: RunDir, start: tuple[Path, Mapping[str, str]]) -> subprocess.Popen[bytes]:
    """A process of its own that extends the chain, from the folder and with the environment that the job began with."""
    folder, environment = start
    words = [sys.executable, "-m", "slime_stages.cli.main", "advance", "--run", str(run.root), "--by-job"]
    return subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=2)


def _advance(run: RunDir, start: tuple[Path, Mapping[str, str]]) -> SlimeStagesError | None:
    """Extend the chain, from the folder and with the environment that the job began with; its error, if it failed."""
    folder, environment = start
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        with _stdout_on_stderr():
            load_function(ADVANCE)(run, by_job=True, ended=task_id())
    except SlimeStagesError as error:
        return error
    except Exception as error:  # the stage's own end is told already; this one must not hide it
        traceback.print_exc()
        return SlimeStagesError(f"{type(error).__name__}: {error}")
    return None


def _tell(attempt: Attempt, shard: int | None, end: TaskEnd) -> None:
    """Write the end, unless a later run of the same task has told its own: a node that was cut off may work on."""
    earlier = read_end(attempt, shard)
    if earlier is None or earlier.restarts <= end.restarts:
        write_end(attempt, shard, end)


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """What the block prints, and its processes, goes to stderr: stdout is for manifests."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def main() -> None:
    """End at once when the work is told: who waits for this job need not wait for an interpreter to be taken down."""
    code = run_task(sys.argv[1], int(os.environ.get("SLURM_ARRAY_TASK_ID") or 0))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

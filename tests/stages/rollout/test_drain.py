"""A rollout that is told to stop keeps what is finished, and the next attempt asks for the rest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slime_stages import drain
from slime_stages.data.sample_table import read_samples
from slime_stages.drain import drain_reason, made_progress
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.run_stage import result_of
from slime_stages.launch.start_run import start_run
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.served import Served
from slime_stages.slurm.requeue import progress_of
from slime_stages.stage import Stage, StageCall
from tests.slime_stages.config.settings import resolved
from tests.stages.rollout.told_to_stop import give_seconds, send

pytestmark = pytest.mark.usefixtures("signals")


ASKED: list[int] = []
SIGNAL_AFTER: list[int] = []
"""The number of samples after which the process is told to stop."""


async def counting(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Answers one sample at a time, in the order of the plan."""
    ASKED.append(sample.index or 0)
    sample.append_response_tokens(None, tokens=[5], log_probs=[-1.0], text="x")
    sample.status = Status.COMPLETED
    if len(ASKED) in SIGNAL_AFTER:
        send()
    await asyncio.sleep(0.01)
    return sample


@pytest.fixture
def call(tiny_model: Path, tiny_prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageCall]:
    """A rollout of 4 prompts × 2 samples by `counting`, two samples at a time; no engine is asked."""
    config = resolved(
        hf_checkpoint=str(tiny_model),
        prompt_data=[str(tiny_prompts)],
        input_key="prompt",
        apply_chat_template=True,
        rollout_batch_size=4,
        n_samples_per_prompt=2,
        rollout_max_response_len=4,
        sglang_server_concurrency=1,
        custom_generate_function_path="tests.stages.rollout.test_drain.counting",
    ).config
    run = RunDir(tmp_path / "run")
    start_run(run, config)
    ensure_plan(run, 0)

    @contextmanager
    def no_engine(stage: Stage) -> Iterator[Served]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield Served(urls=(f"http://127.0.0.1:{server.getsockname()[1]}",), engine_count=1)

    monkeypatch.setattr("stages.rollout.run.ready_engines", no_engine)
    ASKED.clear()
    SIGNAL_AFTER[:] = [3]
    yield StageCall(stage="rollout", run=run.root, iteration=0, shard=0)
    SIGNAL_AFTER.clear()


def test_a_drained_rollout_says_how_far_it_got_and_the_next_attempt_asks_the_rest(
    call: StageCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_seconds(monkeypatch, 30)
    run = RunDir(call.run)

    first = result_of(call)
    count, asked = progress_of(run, call), list(ASKED)
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    second = result_of(call)

    assert first.exit_code == 75
    assert first.message == (
        f"drained (SIGTERM): {count} of 4 groups are in the journal; the same command goes on there"
    )
    assert first.hint == f"slime-stages rollout --run {call.run} --iter 0 --shard 0"
    assert 1 <= count <= 3
    assert second.exit_code == 0
    assert len(asked) == 2 * count
    assert [*ASKED] == list(range(8))
    assert [sample.index for sample in read_samples(run.shard_path("rollout", 0, 0, 1))] == list(range(8))
    assert progress_of(run, call) == 0


def test_a_drain_leaves_what_the_next_attempt_needs_and_no_more(
    call: StageCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_seconds(monkeypatch, 30)

    result_of(call)

    folder = RunDir(call.run).stage_path("rollout", 0)
    assert [path.name for path in folder.iterdir()] == [".journal-00000"]
    assert made_progress()
    assert drain_reason() == "SIGTERM"


def test_a_process_that_was_told_to_stop_begins_no_other_call(call: StageCall) -> None:
    drain.begin_drain("SIGTERM")

    result = result_of(call)

    assert (result.exit_code, ASKED) == (75, [])
    assert result.message == "drained (SIGTERM): what is committed stays, the same command does the rest"

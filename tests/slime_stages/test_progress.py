"""Progress: lines in a log, records for a program above, and nothing on stdout."""

from __future__ import annotations

import json
import os

import pytest

from slime_stages import progress
from slime_stages.progress import PIPE_VARIABLE, Progress


@pytest.fixture(autouse=True)
def _no_program_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PIPE_VARIABLE, raising=False)


def test_a_log_gets_a_line_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("rollout 3", 8, "groups") as bar:
        bar.advance(2, tokens_per_second=120)
        bar.advance(mean_reward=0.5)

    out, err = capsys.readouterr()
    assert out == ""
    assert err.split("  ")[0] == "rollout 3: 3/8 groups"
    assert "tokens per second 120  mean reward 0.5" in err


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)

    with Progress("reward", None) as bar:
        bar.update(1)
        bar.update(5)

    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "reward: 1",
        "reward: 5",
        "reward: 5",
    ]


def test_work_that_failed_does_not_claim_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with Progress("train", 2):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert capsys.readouterr().err == ""


def test_a_program_above_gets_records(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv(PIPE_VARIABLE, str(writer))

    with Progress("rollout", 4) as bar:
        bar.advance(3, tokens=12)
    os.close(writer)

    with os.fdopen(reader) as pipe:
        records = [json.loads(line) for line in pipe]
    assert [(record["title"], record["done"], record["total"]) for record in records] == [
        ("rollout", 0, 4),
        ("rollout", 3, 4),
    ]
    assert records[-1]["figures"] == "tokens 12"
    assert capsys.readouterr().err == ""


def test_the_work_goes_on_when_the_program_above_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setenv(PIPE_VARIABLE, str(writer))

    with Progress("rollout", 4) as bar:
        bar.advance()
        bar.advance()
    os.close(writer)

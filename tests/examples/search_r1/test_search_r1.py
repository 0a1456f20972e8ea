"""Search-R1 in the real stages; the search engine is a server of its own that knows one document."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slime_stages.plugins import load_function
from slime_stages.sample import Sample, Status
from tests.examples.conftest import TURN, Example, read_text

MODULE = "examples.search_r1.generate"
FOUND = "\n\n<information>Doc 1(Title: Bonn) a town on the Rhine</information>\n\n"
ROW = {
    "prompt": [{"role": "user", "content": "Which town?"}],
    "reward_model": {"ground_truth": {"target": ["Bonn", "the town of Bonn"]}},
    "data_source": "nq",
}


class Library(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"result": [[{"document": {"contents": "Bonn\na town on the Rhine"}, "score": 0.5}]]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def custom() -> Iterator[str]:
    """Settings of the example, with a search engine that runs."""
    Library.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Library) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        yield f"search_url: {url}\nsearch_topk: 1\nsearch_max_turns: 3\n"
        server.shutdown()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return path


def test_the_model_searches_reads_and_answers_and_what_it_read_is_not_trained_on(
    begin: Callable[..., Example], says: Callable[..., None], custom: str, prompts: Path, tiny_model: Path
) -> None:
    example = begin("examples/search_r1/search_r1.toml", prompts, custom, rollout_max_response_len=200)
    lines = {0: "I look. <search> river town </search>", 1: "So <answer>Town of Bonn.</answer>"}
    says(MODULE, lambda sample: lines[sample.response.count("<information>")])

    first, _ = example.roll()
    rewards = [row["reward"] for row in example.score()]

    assert first.response == lines[0] + FOUND + lines[1]
    assert (first.status, sum(first.loss_mask or ()), read_text(first, tiny_model)) == (Status.COMPLETED, 8, FOUND)
    assert Library.asked == [{"queries": ["river town"], "topk": 1, "return_scores": True}] * 2
    assert rewards == [1.0, 1.0]
    assert 0 < first.non_generation_time < 10


def test_a_model_that_neither_searches_nor_answers_is_told_how_until_its_turns_are_used_up(
    begin: Callable[..., Example], says: Callable[..., None], custom: str, prompts: Path
) -> None:
    example = begin("examples/search_r1/search_r1.toml", prompts, custom, rollout_max_response_len=400)
    says(MODULE, lambda sample: "Well.")

    first, _ = example.roll()

    assert first.response.count("to look something up") == 2
    assert (first.status, sum(first.loss_mask or ())) == (Status.TRUNCATED, 3 * TURN)
    assert [row["reward"] for row in example.score()] == [0.0, 0.0]


def test_what_is_read_ends_where_the_response_must(
    begin: Callable[..., Example], says: Callable[..., None], custom: str, prompts: Path
) -> None:
    example = begin("examples/search_r1/search_r1.toml", prompts, custom, rollout_max_response_len=10)
    says(MODULE, lambda sample: "<search>river town</search>")

    first, _ = example.roll()

    assert (first.status, first.response_length, sum(first.loss_mask or ())) == (Status.TRUNCATED, 10, TURN)


@pytest.mark.parametrize(
    ("response", "label", "score"),
    [
        ("<answer>no</answer> then <answer>The Bonn!</answer>", {"target": "bonn"}, 1.0),
        ("<answer>Bonn and more</answer>", {"target": ["Bonn"]}, 0.0),
        ("Bonn", {"ground_truth": {"target": ["Bonn"]}}, 0.0),
    ],
)
async def test_the_last_answer_counts_as_the_label_has_it(response: str, label: Any, score: float) -> None:
    reward: Any = load_function("examples.search_r1.reward.reward")

    assert await reward(None, Sample(response=response, label=label)) == score

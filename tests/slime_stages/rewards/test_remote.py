"""`remote_rm` against a real HTTP server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slime_stages.rewards.pool import RewardOutcome, RewardPool, RewardTask
from slime_stages.sample import Sample
from tests.slime_stages.rewards.pool_tasks import open_pool
from tests.slime_stages.rewards.reward_server import RewardServer, reward_server


@pytest.fixture
def server() -> Iterator[RewardServer]:
    with reward_server() as server:
        yield server


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[RewardServer, RewardPool]]:
    """A server that has been asked other things before, and a pool that asks it."""
    with reward_server() as server, pool_for(server.url) as pool:
        yield server, pool


def pool_for(url: str, **changes: Any) -> RewardPool:
    args = {"rm_type": "remote_rm", "rm_url": url, "reward_timeout": changes.get("timeout_seconds", 30.0)}
    return open_pool(**({"args": args} | changes))


def task(label: str, *, key: str | None = None, response: str = "abc", **metadata: Any) -> RewardTask:
    sample = Sample(prompt="p", response=response, label=label, metadata=metadata)
    return RewardTask(key=key or label, samples=[sample.to_dict()], is_list=False)


def score(pool: RewardPool, *tasks: RewardTask) -> dict[str, RewardOutcome]:
    return {outcome.key: outcome for outcome in pool.score(tasks)}


def test_the_server_gets_prompt_response_and_label_and_its_json_is_the_reward(
    shared: tuple[RewardServer, RewardPool],
) -> None:
    server, pool = shared

    outcomes = score(pool, task("length"), task("parts"))

    assert outcomes["length"].rewards == [3.0]
    assert outcomes["parts"].rewards == [{"score": 0.5, "why": "half"}]
    assert {"prompt": "p", "response": "abc", "label": "length"} in server.bodies


def test_what_may_be_over_soon_is_tried_again(shared: tuple[RewardServer, RewardPool]) -> None:
    server, pool = shared

    outcomes = score(pool, task("recovers"), task("breaks_off"))

    assert [outcomes[name].rewards for name in ("recovers", "breaks_off")] == [[3.0], [3.0]]
    assert [server.asked[name] for name in ("recovers", "breaks_off")] == [3, 3]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("bad_request", "refused the sample: 400 Bad Request: the response is too long"),
        ("too_many", "refused the sample: 429 Too Many Requests: come back later"),
        ("garbage", "answered with what is no JSON: <html>it works</html>"),
        ("no_number", "a reward must be a finite number or a dict, not str '1.0'"),
        ("not_finite", "a reward must be a finite number or a dict, not float nan"),
    ],
)
def test_any_other_answer_is_final_and_an_error_of_its_sample_alone(
    shared: tuple[RewardServer, RewardPool], label: str, message: str
) -> None:
    server, pool = shared

    outcomes = score(pool, task(label), task("length"))

    assert (outcomes[label].rewards, outcomes[label].status.value) == ([None], "error")
    assert message in str(outcomes[label].message)
    assert server.asked[label] == 1
    assert outcomes["length"].rewards == [3.0]


def test_the_deadline_is_over_all_attempts_and_its_message_tells_the_last_answer(server: RewardServer) -> None:
    started = time.monotonic()
    with pool_for(server.url, timeout_seconds=1.0) as pool:
        outcomes = score(pool, task("down"), task("hang"), task("length"))

    assert time.monotonic() - started < 5
    assert outcomes["down"].status.value == outcomes["hang"].status.value == "timeout"
    assert "gave no reward within 1 s, asked " in str(outcomes["down"].message)
    assert str(outcomes["down"].message).endswith("the last time: 500 Internal Server Error: no GPU left")
    assert str(outcomes["hang"].message).endswith("asked 1 times; the last time: no answer")
    assert server.asked["down"] >= 2
    assert outcomes["length"].rewards == [3.0]


def test_a_server_that_is_not_there_is_waited_for_until_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pool_for(f"http://127.0.0.1:{port}/", timeout_seconds=1.0) as pool:
        [outcome] = pool.score([task("length")])

    assert outcome.status.value == "timeout"
    assert "ClientConnectorError" in str(outcome.message)


def test_many_are_asked_at_a_time_over_few_connections(server: RewardServer) -> None:
    tasks = [task("slow", key=str(number)) for number in range(24)]

    with pool_for(server.url, workers=1, requests=8) as pool:
        started = time.monotonic()
        outcomes = score(pool, *tasks)
        seconds = time.monotonic() - started

    assert [outcomes[str(number)].rewards for number in range(24)] == [[3.0]] * 24
    assert (server.most_at_once, server.connections) == (8, 8)
    assert 0.6 <= seconds < 4.8  # three rounds; one at a time would take 4.8 s


def test_a_type_in_the_metadata_goes_to_the_server_or_away_from_it(server: RewardServer) -> None:
    args = {"rm_type": "math", "rm_url": server.url, "reward_timeout": 30.0}
    boxed = r"so \boxed{1234}"

    with open_pool(args=args) as pool:
        outcomes = score(
            pool,
            task("length", key="remote", rm_type="remote_rm"),
            task("1234", key="local", response=boxed),
            task("length", key="boxed", response=boxed, rm_type="boxed_remote_rm"),
        )

    assert outcomes["remote"].rewards == [3.0]
    assert outcomes["local"].rewards == [1.0]
    assert outcomes["boxed"].rewards == [4.0]


def test_samples_that_belong_together_are_asked_for_each_on_its_own(shared: tuple[RewardServer, RewardPool]) -> None:
    samples = [Sample(response="a" * count, label="length").to_dict() for count in (1, 2, 3)]
    mixed = [samples[0], Sample(response="cat", label="cat", metadata={"rm_type": "f1"}).to_dict()]

    outcomes = score(
        shared[1],
        RewardTask(key="group", samples=samples, is_list=True),
        RewardTask(key="mixed", samples=mixed, is_list=True),
    )

    assert outcomes["group"].rewards == [1.0, 2.0, 3.0]
    assert outcomes["mixed"].rewards == [1.0, 1.0]


def test_a_worker_that_asks_the_server_tells_what_it_said_at_its_deadline(server: RewardServer) -> None:
    mixed = [Sample(label="down").to_dict(), Sample(response="cat", label="cat", metadata={"rm_type": "f1"}).to_dict()]

    with pool_for(server.url, timeout_seconds=1.0) as pool:
        [outcome] = pool.score([RewardTask(key="mixed", samples=mixed, is_list=True)])

    assert (outcome.status.value, outcome.rewards) == ("timeout", [None, None])
    assert "500 Internal Server Error: no GPU left" in str(outcome.message)


def test_without_an_address_it_says_how_to_give_one() -> None:
    with open_pool(args={"rm_type": "remote_rm"}) as pool:
        [outcome] = pool.score([task("length")])

    assert outcome.message == "reward type `remote_rm` needs the address of a server (--rm-url URL)"

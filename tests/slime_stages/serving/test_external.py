from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import RetryableError, UsageError
from slime_stages.serving.client import EngineClient
from slime_stages.serving.external import before_external, probe, probe_all
from tests.slime_stages.serving.fake_engine import FakeEngine, serving
from tests.slime_stages.serving.settings import config_of


def address(engine: FakeEngine) -> str:
    return engine.url.removeprefix("http://")


@pytest.mark.parametrize(
    ("info", "worker_type", "gpu_count", "port"),
    [
        ({}, "regular", 1, None),
        ({"tp_size": 4, "pp_size": 2, "disaggregation_mode": "null"}, "regular", 8, None),
        ({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998}, "prefill", 1, 8998),
        ({"disaggregation_mode": "decode", "disaggregation_bootstrap_port": 8998}, "decode", 1, None),
        ({"encoder_only": True, "num_gpus": 2}, "encoder", 2, None),
    ],
)
def test_an_engine_says_what_it_is(info: dict[str, object], worker_type: str, gpu_count: int, port: int | None) -> None:
    with serving(FakeEngine(**info)) as engine:
        found = probe(address(engine))

    assert (found.worker_type, found.gpu_count, found.bootstrap_port) == (worker_type, gpu_count, port)


class FakeEncoder(FakeEngine):
    """As SGLang's: it does not describe itself, but lists what can be asked of it."""

    def answer(self, path: str, body: dict[str, Any], routing_key: str | None) -> Any:
        return {"paths": {"/encode": {}, "/health": {}}} if path == "/openapi.json" else None


def test_an_encoder_is_known_by_what_it_can_be_asked() -> None:
    with serving(FakeEncoder()) as engine:
        assert probe(address(engine)).worker_type == "encoder"


def test_nobody_at_an_address_is_worth_another_try() -> None:
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1/server_info does not answer"):
        probe("127.0.0.1:1")


def test_engines_that_cannot_answer_together_are_refused() -> None:
    says = "the external engines are prefill: they cannot answer a request together"
    with serving(FakeEngine(disaggregation_mode="prefill")) as engine, pytest.raises(UsageError, match=says):
        probe_all([address(engine)], config_of())


def test_experts_of_a_prompt_are_not_taken_from_external_engines_that_only_decode() -> None:
    with ExitStack() as stack:
        pair = [stack.enter_context(serving(FakeEngine(disaggregation_mode=mode))) for mode in ("prefill", "decode")]
        addresses = [address(engine) for engine in pair]

        assert [engine.worker_type for engine in probe_all(addresses, config_of())] == ["prefill", "decode"]
        with pytest.raises(UsageError, match="tell experts of prompts that they never computed"):
            probe_all(addresses, config_of("--use-rollout-routing-replay"))


def test_options_that_an_engine_was_not_started_with_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeEngine(dtype="bfloat16", page_size=1)) as engine:
        probe_all([address(engine)], config_of("--sglang-dtype", "float32", "--sglang-page-size", "1"))

    assert f"warning: {engine.url} has dtype = 'bfloat16'; the config says 'float32'" in capsys.readouterr().err


async def test_several_engines_get_a_router_and_one_is_asked_directly(tmp_path: Path) -> None:
    config = config_of("--router-policy", "round_robin")
    with ExitStack() as stack:
        engines = [stack.enter_context(serving(FakeEngine())) for _ in range(2)]
        found = probe_all([address(engine) for engine in engines], config)

        with before_external(found[:1], config, lambda name: tmp_path / name) as served:
            assert served.urls == (engines[0].url,)
        with before_external(found, config, lambda name: tmp_path / name) as served:
            assert served.urls[0] not in {engine.url for engine in engines}
            async with EngineClient(served.urls[0], vocab_size=10, timeout_seconds=30) as client:
                for number in range(4):
                    await client.generate([1], {}, rid=str(number))

    assert served.engine_count == 2
    assert served.engine_urls == (engines[0].url, engines[1].url)
    assert [len(engine.generated) for engine in engines] == [2, 2]

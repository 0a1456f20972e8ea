"""slime's two hooks of on-policy distillation, with a real engine as the teacher."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime_stages.compat import http
from slime_stages.compat.distillation import ask_teacher, post_process_rewards, reward_func
from slime_stages.errors import DataError, UsageError
from slime_stages.rewards.scoring import Scorer
from slime_stages.sample import Sample, Status
from slime_stages.serving.client import EngineClient
from slime_stages.serving.engine import Engine
from tests.e2e.runs import at_version_0
from tests.fixtures.tiny_model import VOCABULARY_SIZE
from tests.slime_stages.config.settings import resolved

HERE = "tests.slime_stages.compat.test_distillation"
SAID = {"meta_info": {"input_token_logprobs": [[-0.5, 7, None]]}}


def teacher(args: Any, sample: Sample, **_: Any) -> dict[str, Any]:
    return SAID


def answered(log_probs: list[float], *, response_length: int) -> Sample:
    entries: list[Any] = [[None, 7, None], *([value, 7, None] for value in log_probs)]
    reward: Any = {"meta_info": {"input_token_logprobs": entries}}
    return Sample(index=4, tokens=[7] * 9, response_length=response_length, reward=reward)


async def test_a_teacher_says_what_it_thinks_of_the_tokens_of_a_response(tiny_engine: Engine, tiny_model: Path) -> None:
    at_version_0(tiny_engine)
    prompt = [5, 6, 7]
    async with EngineClient(tiny_engine.url, vocab_size=VOCABULARY_SIZE) as client:
        output = await client.generate(prompt, {"max_new_tokens": 4, "temperature": 1.0}, rid="student")
    length = len(output.output_ids)
    sample = Sample(index=0, tokens=prompt + output.output_ids, response_length=length)
    args = SimpleNamespace(rm_url=f"{tiny_engine.url}/generate", rollout_temperature=1.0)

    sample.reward = await reward_func(args, sample)  # type: ignore[assignment]
    rewards = post_process_rewards(args, [sample])

    await http.close_http_client()
    assert sample.teacher_log_probs == pytest.approx(output.output_log_probs, abs=1e-3)
    assert rewards == ([0.0], [0.0])


def test_the_last_log_probs_are_those_of_the_response() -> None:
    samples = [answered([-1.0, -2.0, -3.0], response_length=2), answered([-1.0], response_length=0)]

    post_process_rewards(None, samples)

    assert [sample.teacher_log_probs for sample in samples] == [[-2.0, -3.0], []]


def test_what_is_no_answer_of_a_teacher_is_an_error() -> None:
    with pytest.raises(DataError, match="the reward of sample 4 is not what a teacher says"):
        post_process_rewards(None, [Sample(index=4, reward=0.5)])
    with pytest.raises(DataError, match="1 log-probs for the 2 tokens of sample 4"):
        post_process_rewards(None, [answered([-1.0], response_length=2)])


def test_what_a_teacher_says_is_kept_whole_for_the_function_that_makes_rewards_of_it() -> None:
    hooks = {"custom_reward_post_process_path": "slime.rollout.on_policy_distillation.post_process_rewards"}
    with Scorer(resolved(custom_rm_path=f"{HERE}.teacher", reward_workers=1, **hooks).config) as scorer:
        [score] = asyncio.run(scorer.score([Sample(group_index=0, status=Status.COMPLETED)]))

    assert (score.reward, score.message) == (SAID, None)


async def test_a_teacher_has_to_be_named() -> None:
    with pytest.raises(UsageError, match="no teacher is named"):
        await reward_func(SimpleNamespace(rm_url=None), Sample(index=0))
    with pytest.raises(UsageError, match="no model of sglang_config is named teacher"):
        await ask_teacher(SimpleNamespace(sglang_model_routers={"actor": ("127.0.0.1", 1)}), Sample(index=0))

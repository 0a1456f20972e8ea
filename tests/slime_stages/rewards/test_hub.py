from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slime_stages.errors import DataError, UsageError
from slime_stages.rewards.hub import async_rm, batched_async_rm, plain_view
from slime_stages.sample import Sample

CUSTOM = "tests.slime_stages.rewards.custom_rewards"


def settings(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"rm_type": None, "custom_rm_path": None, "bonus": 7} | given))


async def test_the_type_in_the_metadata_comes_before_the_runs() -> None:
    sample = Sample(response="the cat", label="cat", metadata={"rm_type": " f1 "})

    assert await async_rm(settings(rm_type="math"), sample) == 1.0


async def test_a_custom_function_comes_before_any_type() -> None:
    sample = Sample(response="the cat", metadata={"rm_type": "f1"})

    assert await async_rm(settings(custom_rm_path=f"{CUSTOM}.score_async"), sample) == 7.0


async def test_the_samples_own_function_comes_before_the_runs() -> None:
    sample = Sample(response="ab", custom_rm_path=f"{CUSTOM}.score_async")

    assert await async_rm(settings(custom_rm_path=f"{CUSTOM}.score_plainly"), sample) == 2.0


async def test_a_custom_function_may_be_plain_and_gets_keywords_and_settings() -> None:
    assert await async_rm(settings(custom_rm_path=f"{CUSTOM}:score_plainly"), Sample()) == 7.0
    assert await async_rm(settings(custom_rm_path=f"{CUSTOM}.score_keywords"), Sample(), evaluation=True) == {
        "evaluation": True
    }


@pytest.mark.parametrize(
    ("reward_type", "response", "label", "reward"),
    [
        ("math", r"\boxed{1/2}", "0.5", 1),
        ("deepscaler", r"</think>\boxed{3}", "3", 1),
        ("dapo", "Answer: 3", "3", {"score": 1.0, "acc": True, "pred": "3"}),
        ("boxed_f1", r"a dog \boxed{cat}", "cat", 1.0),
        ("boxed_f1", "cat", "cat", 0.0),
        ("boxed_dapo", r"\boxed{Answer: 3} Answer: 4", "3", {"score": 1.0, "acc": True, "pred": "3"}),
        ("gpqa", "Answer: B", "B", 1.0),
        ("boxed_gpqa", r"Answer: A \boxed{B}", "B", 1.0),
        ("math_verify", "it is $2/4$", "1/2", 1),
        ("boxed_math_verify", r"it is $3$ \boxed{4}", "3", 0),
        ("boxed_math_verify", r"it is $3$ \boxed{\frac{2}{4}}", "1/2", 1),
        ("boxed_math", r"$4$ \boxed{3}", "3", 1),
        ("boxed_deepscaler", r"\boxed{4}</think>\boxed{3}", "3", 1),
        ("code", "```python\na = 1\n```", "assert a == 1", 1.0),
        ("boxed_code", "```python\na = 1\n```", "assert a == 1", 0.0),
    ],
)
async def test_a_type_grades_the_response_or_with_boxed_its_last_box(
    reward_type: str, response: str, label: str, reward: object
) -> None:
    sample = Sample(response=response, label=label)

    assert await async_rm(settings(rm_type=reward_type), sample) == reward
    assert sample.response == response


@pytest.mark.parametrize("prompt", ["ask", [{"role": "system", "content": "s"}, {"role": "user", "content": "ask"}]])
async def test_ifbench_reads_its_instructions_from_the_metadata(prompt: Any) -> None:
    metadata = {"instruction_id_list": ["count:word_count_range"], "kwargs": {"min_words": 2, "max_words": 3}}
    sample = Sample(prompt=prompt, response="one two", metadata=metadata)

    assert await async_rm(settings(rm_type="ifbench"), sample) == 1.0
    assert await async_rm(settings(rm_type="boxed_ifbench"), sample) == 0.0


async def test_the_random_type_gives_a_sample_of_a_seeded_run_the_same_reward_again() -> None:
    samples = [Sample(index=index) for index in range(30)]

    first = await batched_async_rm(settings(rm_type="random", rollout_seed=42), samples)

    assert set(first) == {0, 1}
    assert first == await batched_async_rm(settings(rm_type="random", rollout_seed=42), samples)


async def test_a_list_goes_to_the_runs_function_in_one_call() -> None:
    siblings = [Sample(response="a"), Sample(response="bbb")]
    args = settings(custom_rm_path=f"{CUSTOM}.score_async")

    assert await batched_async_rm(args, siblings) == [1.0, 3.0]
    assert await async_rm(args, siblings) == [1.0, 3.0]


async def test_a_sample_with_a_function_of_its_own_is_scored_by_that_and_the_others_in_one_call() -> None:
    own = f"{CUSTOM}.score_plainly"
    group = [Sample(response="a"), Sample(response="b", custom_rm_path=own), Sample(response="ccc")]
    args = settings(custom_rm_path=f"{CUSTOM}.score_async")

    assert await batched_async_rm(args, group) == [1.0, 7.0, 3.0]
    assert await batched_async_rm(args, group[1:2]) == [7.0]


async def test_a_list_without_a_function_of_the_run_is_scored_one_by_one() -> None:
    siblings = [
        Sample(response="x", custom_rm_path=f"{CUSTOM}.score_plainly"),
        Sample(response="cat", label="cat", metadata={"rm_type": "f1"}),
        Sample(response=r"\boxed{1}", label="2"),
    ]

    assert await batched_async_rm(settings(rm_type="math"), siblings) == [7.0, 1.0, 0]


async def test_a_function_that_gives_a_list_of_samples_one_reward_is_refused() -> None:
    with pytest.raises(DataError, match=r"got a list of 2 samples and returned 1\.0"):
        await batched_async_rm(settings(custom_rm_path=f"{CUSTOM}.score_one_only"), [Sample(), Sample()])


async def test_an_unknown_type_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        UsageError, match="unknown reward type `deepscalar`, known are code, dapo, deepscaler, f1"
    ) as caught:
        await async_rm(settings(rm_type="deepscalar"), Sample())

    assert caught.value.hint == "did you mean `deepscaler`?"


async def test_no_type_at_all_says_how_to_set_one() -> None:
    with pytest.raises(UsageError, match="neither `rm_type` nor `custom_rm_path` is set") as caught:
        await async_rm(settings(), Sample())

    assert "--rm-type with one of code, dapo" in str(caught.value.hint)


def test_tokens_do_not_travel_to_a_grader_that_does_not_look_at_them() -> None:
    view = plain_view(Sample(tokens=[1] * 4, response="a", label="b", index=3).to_dict())

    assert "tokens" not in view
    assert (view["response"], view["label"], view["index"]) == ("a", "b", 3)
    assert Sample.from_dict(view).response == "a"

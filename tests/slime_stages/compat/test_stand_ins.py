"""Small things that plug-ins call: graders, filters, numbers, masks, data sets, what there is once a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slime_stages.compat import grading, masks, metrics, parsing
from slime_stages.compat.data_sources import RolloutDataSourceWithBuffer, pop_first
from slime_stages.compat.datasets import Dataset, filter_long_prompt, read_file
from slime_stages.compat.event_loop import run
from slime_stages.compat.filters import MetricGatherer, call_dynamic_filter, should_drop_dynamic_filter_output
from slime_stages.compat.generation import GenerateState
from slime_stages.compat.logging import log
from slime_stages.compat.processing import load_tokenizer
from slime_stages.compat.sample_hooks import apply_rollout_sample_hooks
from slime_stages.compat.singletons import SingletonMeta
from slime_stages.generation.filters import DynamicFilterOutput
from slime_stages.sample import Sample, Status
from stages.rollout.slime_names import compute_metrics_from_samples, compute_perf_metrics_from_samples
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def args(tiny_model: Path) -> Any:
    given = resolved(rollout_batch_size=4, n_samples_per_prompt=2).config.as_args()
    given.hf_checkpoint, given.sglang_router_ip, given.sglang_router_port = str(tiny_model), "127.0.0.1", 30000
    return given


def test_graders_say_what_the_reward_types_say() -> None:
    assert grading.grade_answer_verl(r"\boxed{1/2}", r"\frac{1}{2}")
    assert grading.grade_answer_mathd("0.5", r"\frac{1}{2}")
    assert grading.grade_answer_sympy("2x+2", "2(x+1)")
    assert grading.compute_score("Answer: 42", 42) == {"score": 1.0, "acc": True, "pred": "42"}
    assert grading.compute_score("Answer: 42", 42, strict_box_verify=True)["pred"] is None
    assert grading.f1_score("the red cat", "a cat") == (pytest.approx(2 / 3), 0.5, 1.0)
    assert grading.remove_boxed(grading.last_boxed_only_string(r"so \boxed{a{b}c}.") or "") == "a{b}c"
    assert grading.last_boxed_only_string("none") is None


def test_answers_are_parsed_into_dicts() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    call = "<tool_call><function=look><parameter=at>sea</parameter></function></tool_call>"

    parsed = parsing.parse_model_output(
        f"I look. {call}", tools_schema=tools, tool_parser_name=None, reasoning_parser_name=None
    )

    assert (parsed.text, parsed.tool_uses, parsed.ill_formed) == (
        "I look.",
        [{"name": "look", "input": {"at": "sea"}}],
        False,
    )
    assert parsing.parse_tool_uses(call, tools, None) == ("", parsed.tool_uses, False)
    assert parsing.parse_xml_tool_uses(f"{call}.", tools) == (".", parsed.tool_uses)


def test_a_filter_may_answer_with_a_truth_value_or_not_be_there() -> None:
    assert call_dynamic_filter(None, 1).keep
    assert call_dynamic_filter(lambda args, group: False, None, []) == DynamicFilterOutput(keep=False)


def test_a_group_that_may_stay_where_too_few_are_under_way_does() -> None:
    may_stay = DynamicFilterOutput(keep=False, reason="flat", keep_when_insufficient=True)
    counted = MetricGatherer()
    counted.on_dynamic_filter_drop("flat")

    assert not should_drop_dynamic_filter_output(may_stay, remaining_batch_size=2, target_data_size=2)
    assert should_drop_dynamic_filter_output(may_stay, remaining_batch_size=3, target_data_size=2)
    assert counted.collect() == {"rollout/dynamic_filter/drop_flat": 1}


def test_numbers_are_summed_up_as_slime_sums_them_up() -> None:
    assert metrics.compute_statistics([1, 2, 6]) == {"mean": 3.0, "median": 2.0, "max": 6.0, "min": 1.0}
    assert metrics.compute_pass_rate([1, 0, 0, 0], group_size=2) == {"pass@1": 0.25, "pass@2": 0.5}
    assert metrics.compute_pass_rate([1, 0, 1], group_size=2, group_ids=["a", "a", "b"])["pass@1"] == 0.75
    assert metrics.compute_pass_rate([1, 1], group_size=1) == {}
    assert metrics.dict_add_prefix({"a": 1}, "x/") == {"x/a": 1}
    assert metrics.has_repetition("again " * 3000)
    assert not metrics.has_repetition("again " * 30)


def test_numbers_of_samples_have_the_keys_that_slime_logs_them_under(args: Any) -> None:
    args.rollout_num_gpus = 2
    lengths, rewards = [4, 2, 3, 3], [1.0, 1.0, 0.0, 0.5]
    samples = [
        Sample(group_index=index // 2, reward=reward, response_length=length, tokens=[7] * 9)
        for index, (length, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]
    samples[0].status, samples[0].loss_mask, samples[0].non_generation_time = Status.TRUNCATED, [1, 1, 0, 0], 2.0

    found = compute_metrics_from_samples(args, samples)
    speed = compute_perf_metrics_from_samples(args, samples, 6.0)

    assert (found["response_len/mean"], found["response_len/max"]) == (2.5, 3.0)  # what a tool wrote is left out
    assert (found["truncated_ratio"], found["repetition_frac"]) == (0.25, 0.0)
    assert {key: value for key, value in found.items() if "zero_std" in key} == {"zero_std/count_1.0": 1.0}
    assert speed["tokens_per_gpu_per_sec"] == pytest.approx(1.0)
    assert speed["effective_tokens_per_gpu_per_sec"] == pytest.approx(10 / 12)
    assert speed["longest_sample_tokens_per_sec"] == pytest.approx(4 / 6)
    assert speed["longest_sample_tokens_per_sec_without_non_generation"] == pytest.approx(1.0)
    assert speed["non_generation_time/max"] == 2.0
    assert compute_perf_metrics_from_samples(args, samples, None) == {}


def test_masks_are_those_of_the_trainer(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    generator = masks.MultiTurnLossMaskGenerator(tokenizer, tokenizer_type="qwen3")

    tokens, mask = generator.get_loss_mask(
        [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "two"}]
    )

    assert len(tokens) == len(mask)
    [said] = generator.get_text_from_loss_mask(tokens, mask)
    assert said.startswith("two")
    assert generator.get_response_lengths([mask, [0, 0], [0, 1, 0]]) == [len(mask) - mask.index(1), 0, 2]


def test_a_data_set_is_what_the_prompt_table_would_hold(tiny_model: Path, tiny_prompts: Path) -> None:
    dataset = Dataset(
        f"{tiny_prompts}@[0:4]", load_tokenizer(tiny_model), prompt_key="prompt", label_key="label", seed=1
    )
    before = [sample.label for sample in dataset.samples]
    dataset.shuffle(3)

    assert before == [row["label"] for row in read_file(f"{tiny_prompts}@[0:4]")]
    assert sorted(map(str, before)) == sorted(str(sample.label) for sample in dataset.samples)
    assert len(dataset) == 4
    texts = [Sample(prompt="short"), Sample(prompt="long " * 20)]
    assert filter_long_prompt(texts, load_tokenizer(tiny_model), None, 8) == texts[:1]


def test_groups_that_were_added_come_first(args: Any) -> None:
    args.prompt_data = None
    source = RolloutDataSourceWithBuffer(args)
    first = source.get_samples(2)

    source.add_samples(first[1:])

    assert [group[0].group_index for group in source.get_samples(2)] == [1, 2]
    assert (pop_first(args, None, first, 1)[0][0].group_index, len(first)) == (0, 1)


def test_the_state_of_generation_is_one_object_until_the_engines_change(args: Any) -> None:
    state = GenerateState(args)
    state.aborted = True
    copied = SimpleNamespace(**vars(args), sglang_dp_size=None)

    assert GenerateState(copied) is state  # type: ignore[call-arg]
    assert state.sampling_params["max_new_tokens"] == args.rollout_max_response_len
    args.sglang_router_port = 30001
    assert GenerateState(args) is not state
    assert not GenerateState(args).aborted


def test_a_stage_that_ends_what_runs_is_seen_by_plug_ins(args: Any) -> None:
    ending: list[int] = []
    args.is_ending = lambda: bool(ending)

    before = GenerateState(args).aborted
    ending.append(1)

    assert (before, GenerateState(args).aborted) == (False, True)


async def test_room_in_the_engines_is_counted_for_each_event_loop(args: Any) -> None:
    args.sglang_server_concurrency, args.rollout_num_engines = 2, 3
    state = GenerateState(args)

    async def room() -> int:
        return state.semaphore._value

    assert state.semaphore is state.semaphore
    assert await asyncio.to_thread(run, room()) == 6


def test_a_singleton_is_made_once() -> None:
    class Service(metaclass=SingletonMeta):
        def __init__(self, name: str) -> None:
            self.name = name

    assert Service("first") is Service("second")
    assert Service("third").name == "first"


async def test_hooks_see_every_sample_of_a_fan_out(args: Any) -> None:
    args.rollout_sample_hook_path = [f"{__name__}.count"]

    made = await apply_rollout_sample_hooks(args, [Sample(), [Sample()]], rollout_id=7, unknown=1)

    assert [made[0].metadata, made[1][0].metadata] == [{"seen_in": 7}] * 2


def count(args: Any, sample: Sample, *, rollout_id: int) -> None:
    sample.metadata = {"seen_in": rollout_id}


def test_numbers_that_are_logged_outside_of_a_run_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    log(SimpleNamespace(), {"rollout/own": np.float32(0.5), "note": "no number"}, step_key="rollout/step")

    assert capsys.readouterr().err == '{"rollout/own": 0.5}\n'

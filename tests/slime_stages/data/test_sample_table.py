"""Samples through a shard and back: nothing is lost, nothing is confused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slime_stages.data import sample_table
from slime_stages.data.counters import PrefixCacheInfo, SpecInfo
from slime_stages.data.sample_table import samples_of, samples_table
from slime_stages.data.schema import ROLLOUT
from slime_stages.data.shards import read_shard
from slime_stages.errors import DataError
from slime_stages.sample import Sample, Status
from tests.slime_stages.round_trip import assert_same, stored


def full_sample() -> Sample:
    """A value in every field."""
    return Sample(
        group_index=4,
        index=17,
        rollout_id=9,
        prompt="What is 2 + 2?",
        tokens=[10, 11, 12, 13],
        multimodal_inputs={"images": None, "fps": 2.0},
        multimodal_train_inputs={"pixel_values": np.arange(6, dtype=np.float32).reshape(2, 3)},
        multimodal_train_input_id="image-3",
        apply_chat_template_kwargs={"enable_thinking": False},
        response="Four ☘",
        response_length=2,
        label={"answer": [4, "four"]},
        reward=0.1,
        loss_mask=[1, 0],
        weight_versions=["3", "4"],
        rollout_log_probs=[-0.5, 0.0],
        rollout_top_p_token_ids=np.array([5, 6, 7], np.int32),
        rollout_top_p_token_offsets=np.array([0, 1, 3], np.int32),
        rollout_routed_experts=np.arange(12, dtype=np.int32).reshape(3, 2, 2),
        remove_sample=True,
        teacher_log_probs=[-0.25, -0.125],
        status=Status.TRUNCATED,
        metadata={"rm_type": "math", "nested": {"a": [None, True]}},
        generate_function_path="my.generate",
        custom_rm_path="my.reward",
        train_metadata={"weight": 2},
        session_id="session-1",
        non_generation_time=1.5,
        spec_info=SpecInfo(1, 2, 3, 4),
        prefix_cache_info=PrefixCacheInfo(5, 6),
        prompt_id="abc",
        sampling_params={"temperature": 0.7, "sampling_seed": 123},
        generate_seconds=2.25,
    )


def test_every_field_comes_back_from_a_shard(tmp_path: Path) -> None:
    sample = full_sample()
    assert all(getattr(sample, name) != getattr(Sample(), name) for name in ("label", "session_id", "loss_mask"))

    [found] = stored(tmp_path, sample)

    assert_same(found, sample)


def test_a_sample_without_any_value_comes_back_too(tmp_path: Path) -> None:
    [found] = stored(tmp_path, Sample())

    assert_same(found, Sample())


def test_none_and_an_empty_list_stay_two_things(tmp_path: Path) -> None:
    absent = Sample(tokens=[1])
    empty = Sample(tokens=[1], loss_mask=[], rollout_log_probs=[], teacher_log_probs=[])

    found = stored(tmp_path, absent, empty, absent)

    assert [sample.loss_mask for sample in found] == [None, [], None]
    assert [sample.rollout_log_probs for sample in found] == [None, [], None]
    assert [sample.teacher_log_probs for sample in found] == [None, [], None]


@pytest.mark.parametrize("reward", [None, 0.0, -1.5, 1, True, {"score": 0.5, "parts": [1, 2]}, {}, [1.0, 2.0], "good"])
def test_a_reward_of_any_kind_comes_back(tmp_path: Path, reward: Any) -> None:
    [found] = stored(tmp_path, Sample(reward=reward))

    assert found.reward == reward


def test_a_reward_that_is_a_numpy_number_comes_back_as_a_number(tmp_path: Path) -> None:
    [found] = stored(tmp_path, Sample(reward=np.float32(0.5)))  # type: ignore[arg-type]

    assert found.reward == 0.5


def test_a_reward_that_is_not_a_number_stays_nan_and_is_not_unscored(tmp_path: Path) -> None:
    [found] = stored(tmp_path, Sample(reward=float("nan")))

    assert isinstance(found.reward, float)
    assert np.isnan(found.reward)


def test_a_prompt_of_messages_comes_back_as_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]

    found = stored(tmp_path, Sample(prompt=messages), Sample(prompt=""), Sample(prompt=[]))

    assert [sample.prompt for sample in found] == [messages, "", []]


@pytest.mark.parametrize("label", [None, "", 0, False, [], {}, "null", [{"a": None}]])
def test_a_label_of_any_kind_comes_back(tmp_path: Path, label: Any) -> None:
    [found] = stored(tmp_path, Sample(label=label))

    assert found.label == label
    assert type(found.label) is type(label)


def test_unknown_attributes_come_back_with_their_arrays_and_bytes(tmp_path: Path) -> None:
    sample = Sample()
    attributes = {
        "trace": [{"tool": "search"}],
        "tool_call_count": 2,
        "hidden": np.ones((2, 2), np.float16),
        "raw": b"\x00\xff",
    }
    vars(sample).update(attributes)

    [found] = stored(tmp_path, sample)

    assert_same(found, sample)


def test_images_come_back_pixel_by_pixel(tmp_path: Path) -> None:
    red, grey = Image.new("RGB", (3, 2), (255, 0, 7)), Image.new("L", (1, 1), 128)

    [found] = stored(tmp_path, Sample(multimodal_inputs={"images": [red, grey], "videos": None}))

    assert found.multimodal_inputs is not None
    images = found.multimodal_inputs["images"]
    assert [(image.mode, image.size, image.tobytes()) for image in images] == [
        (image.mode, image.size, image.tobytes()) for image in (red, grey)
    ]


def test_an_image_that_png_cannot_hold_is_refused_with_the_sample(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"multimodal_inputs of sample 5 cannot be stored: .*CMYK"):
        stored(tmp_path, Sample(index=5, multimodal_inputs={"images": [Image.new("CMYK", (1, 1))]}))


def test_arrays_with_gaps_in_memory_are_stored(tmp_path: Path) -> None:
    strided = np.arange(10, dtype=np.int32)[::2]

    [found] = stored(tmp_path, Sample(metadata={"scores": strided}, multimodal_train_inputs={"grid": strided}))

    assert found.metadata == {"scores": [0, 2, 4, 6, 8]}
    assert found.multimodal_train_inputs is not None
    assert found.multimodal_train_inputs["grid"].tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"metadata": {"lock": object()}}, "metadata of sample 5 cannot be stored as JSON"),
        ({"label": {1, 2}}, "label of sample 5 cannot be stored as JSON"),
        ({"multimodal_inputs": {"video": np.array([object()])}}, "multimodal_inputs of sample 5 cannot be stored"),
        ({"loss_mask": [1, 1]}, "sample 5 of group 2: loss_mask has 2 entries for 1 response tokens"),
        ({"rollout_log_probs": []}, "sample 5 of group 2: rollout_log_probs has 0 entries"),
        ({"response_length": 4}, "sample 5 of group 2: 4 response tokens, but only 3 tokens"),
        ({"rollout_top_p_token_offsets": np.array([0], np.int32)}, "sample 5 of group 2: 1 top-p offsets for 1"),
        ({"tokens": [1, 2, 2**31]}, "tokens: .*no int32"),
        ({"tokens": [1, 2, 1.5]}, "tokens: .*no int32"),
        ({"tokens": [1, 2, None]}, "tokens cannot be stored"),
        ({"loss_mask": [-1]}, "loss_mask: .*no uint8"),
        ({"loss_mask": [0.5]}, "loss_mask: .*no uint8"),
        ({"rollout_log_probs": ["low"]}, "rollout_log_probs cannot be stored"),
        ({"weight_versions": [3]}, "weight_versions cannot be stored"),
        ({"response": "\ud800"}, "response cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_named(tmp_path: Path, fields: dict[str, Any], complaint: str) -> None:
    values = {"index": 5, "group_index": 2, "tokens": [1, 2, 3], "response_length": 1, **fields}

    with pytest.raises(DataError, match=complaint) as caught:
        stored(tmp_path, Sample(**values))

    assert caught.value.exit_code == 65


def test_numbers_of_other_types_are_stored_where_they_fit(tmp_path: Path) -> None:
    sample = Sample(
        tokens=np.array([1, 2, 3]),  # type: ignore[arg-type]
        response_length=2,
        loss_mask=[True, 0.0],  # type: ignore[list-item]
        rollout_log_probs=(np.float32(-0.5), float("-inf")),  # type: ignore[arg-type]
        teacher_log_probs=np.array([-1.0, -2.0]),  # type: ignore[arg-type]
    )

    [found] = stored(tmp_path, sample)

    assert (found.tokens, found.loss_mask) == ([1, 2, 3], [1, 0])
    assert found.rollout_log_probs == [-0.5, float("-inf")]
    assert found.teacher_log_probs == [-1.0, -2.0]


def test_log_probs_come_back_as_the_float32_numbers_that_the_engine_sent(tmp_path: Path) -> None:
    engine = np.array([-0.1, -12.345678], np.float32).tolist()

    [found] = stored(tmp_path, Sample(tokens=[1, 2], response_length=2, rollout_log_probs=engine))

    assert found.rollout_log_probs == engine


def test_samples_keep_their_order_and_their_rows_are_numbered_over_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_table, "ROWS_PER_WRITE", 2)
    samples = [Sample(index=index, status=list(Status)[index]) for index in range(5)]

    found = stored(tmp_path, *samples)

    table = read_shard(tmp_path / "shard.parquet", ROLLOUT)
    assert [sample.index for sample in found] == [0, 1, 2, 3, 4]
    assert [sample.status for sample in found] == list(Status)
    assert table["row"].to_pylist() == [0, 1, 2, 3, 4]
    assert set(table["iteration"].to_pylist()) == {3}
    assert set(table["shard"].to_pylist()) == {1}
    assert table["split"].to_pylist() == ["train"] * 5


def test_huge_samples_are_written_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_table, "NUMBERS_PER_WRITE", 10)
    sizes = [4, 4, 4, 30, 1, 1]

    assert list(sample_table._writes([Sample(tokens=[0] * size) for size in sizes])) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert [len(s.tokens) for s in stored(tmp_path, *(Sample(tokens=[0] * size) for size in sizes))] == sizes


def test_no_samples_make_an_empty_shard(tmp_path: Path) -> None:
    assert stored(tmp_path) == []


def test_a_table_in_memory_gives_the_same_samples() -> None:
    sample = full_sample()

    [found] = samples_of(samples_table([sample], iteration=0, shard=0, split="heldout"))

    assert_same(found, sample)

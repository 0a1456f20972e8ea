from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime_stages.errors import DataError, UsageError
from slime_stages.generation.sft import generate_rollout
from slime_stages.sample import Sample, Status

TALK = [
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "Are you sure?"},
    {"role": "assistant", "content": "Yes."},
]


class Prompts:
    """A data source of one conversation."""

    def __init__(self, prompt: Any) -> None:
        self._sample = Sample(group_index=5, prompt=prompt, prompt_id="abc")

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        return [[self._sample]][:num_samples]


def settings(model: Path, **changed: Any) -> SimpleNamespace:
    given = {"n_samples_per_prompt": 1, "rollout_batch_size": 1, "loss_mask_type": "qwen", "hf_checkpoint": str(model)}
    return SimpleNamespace(**given | changed)


def trained_text(sample: Sample, model: Path) -> str:
    from transformers import AutoTokenizer

    assert sample.loss_mask is not None
    response = sample.tokens[-sample.response_length :]
    trained = [token for token, is_trained in zip(response, sample.loss_mask, strict=True) if is_trained]
    return str(AutoTokenizer.from_pretrained(model).decode(trained))


def test_a_conversation_is_a_finished_sample_of_which_the_assistants_turns_are_trained_on(tiny_model: Path) -> None:
    [[sample]] = generate_rollout(settings(tiny_model), 0, Prompts(TALK)).samples

    assert (sample.status, sample.reward, sample.rollout_log_probs) == (Status.COMPLETED, 0.0, None)
    assert sample.response.startswith("3<|im_end|>\n<|im_start|>user\nAre you sure?<|im_end|>\n")
    assert trained_text(sample, tiny_model) == "3<|im_end|>\nYes.<|im_end|>\n"


def test_a_conversation_in_which_the_assistant_says_nothing_has_no_response(tiny_model: Path) -> None:
    [[sample]] = generate_rollout(settings(tiny_model), 0, Prompts(TALK[:1])).samples

    assert (sample.response_length, sample.loss_mask, sample.response) == (0, [], "")
    assert len(sample.tokens) > 0


@pytest.mark.parametrize(
    ("prompt", "changed", "error", "says"),
    [
        ("1 + 2", {}, UsageError, r"prompt abc \(position 5\) is text, not chat messages"),
        ([], {}, DataError, r"prompt abc \(position 5\): a conversation without messages"),
        ([{"content": "hello"}], {}, DataError, r"the chat template refuses it|role"),
        (TALK, {"n_samples_per_prompt": 2}, UsageError, "2 samples of a conversation would all be the same"),
    ],
)
def test_what_cannot_be_trained_on_is_named(
    tiny_model: Path, prompt: Any, changed: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        generate_rollout(settings(tiny_model, **changed), 0, Prompts(prompt))


def test_an_evaluation_is_told_to_ask_the_model(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="evaluate nothing") as caught:
        generate_rollout(settings(tiny_model), 0, Prompts(TALK), evaluation=True)

    assert "--eval-function-path slime.rollout.sglang_rollout.generate_rollout" in str(caught.value.hint)

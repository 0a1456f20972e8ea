"""slime's on-policy distillation: a teacher's log-probs as the reward of a sample, handed to the trainer with it.

They are settings of a run that has `use_opd` with `opd_type = "sglang"`: `reward_func` and `post_process_rewards`, with
`rm_url` the teacher's `/generate`; or in their place `ask_teacher`, for a teacher among the engines of the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_stages.compat.http import post
from slime_stages.compat.processing import encode_image_for_rollout_engine
from slime_stages.errors import DataError, UsageError
from slime_stages.sample import Sample
from slime_stages.serving.models import get_model_url

TEACHER = "teacher"


async def reward_func(args: Any, sample: Sample, **_: Any) -> dict[str, Any]:
    """What the teacher says of the response's tokens, and of one before them, as slime's own hooks read it."""
    if not args.rm_url:
        raise UsageError("no teacher is named", hint="--rm-url http://TEACHER:PORT/generate")
    return await _said(args.rm_url, args, sample)


def post_process_rewards(args: Any, samples: Sequence[Sample], **_: Any) -> tuple[list[float], list[float]]:
    """Zeros, raw and to train on: all that is learnt comes from the teacher's log-probs, which the samples get."""
    for sample in samples:
        sample.teacher_log_probs = _of_response(sample, sample.reward)
    zeros = [0.0] * len(samples)
    return zeros, zeros


async def ask_teacher(args: Any, sample: Sample, *, evaluation: bool = False) -> None:
    """As `rollout_sample_hook_path`: the model named `teacher` in `sglang_config` is asked while samples are made.

    The reward is then free to be about something else.
    """
    if TEACHER not in (args.sglang_model_routers or {}):
        raise UsageError(
            f"no model of sglang_config is named {TEACHER}", hint=f"add - {{name: {TEACHER}, model_path: FOLDER, …}}"
        )
    if not evaluation and sample.response_length:
        said = await _said(get_model_url(args, TEACHER), args, sample)
        sample.teacher_log_probs = _of_response(sample, said)


async def _said(url: str, args: Any, sample: Sample) -> dict[str, Any]:
    images = (sample.multimodal_inputs or {}).get("images") or []
    asked = {
        "input_ids": sample.tokens,
        "sampling_params": {
            "temperature": args.rollout_temperature,
            "max_new_tokens": 0,
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "logprob_start_len": 0,
        **({"image_data": [encode_image_for_rollout_engine(image) for image in images]} if images else {}),
    }
    answer = await post(url, asked)
    entries = answer["meta_info"]["input_token_logprobs"]
    return {"meta_info": {"input_token_logprobs": entries[-sample.response_length - 1 :]}}


def _of_response(sample: Sample, said: Any) -> list[float]:
    try:
        entries = said["meta_info"]["input_token_logprobs"][1:]
        found = [float(entry[0]) for entry in entries[len(entries) - sample.response_length :]]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"the reward of sample {sample.index} is not what a teacher says of its tokens: {str(said)[:100]}",
            hint="--custom-rm-path slime.rollout.on_policy_distillation.reward_func, without --reward-key",
        ) from error
    if len(found) != sample.response_length:
        raise DataError(
            f"the teacher has {len(found)} log-probs for the {sample.response_length} tokens of sample {sample.index}",
            hint="teacher and policy need the same tokenizer",
        )
    return found

"""slime's on-policy distillation: a teacher's log-probs as the reward of a sample, handed to the trainer with it.

The two functions are settings of a run that has `use_opd` with `opd_type = "sglang"`; `rm_url` is the teacher's
`/generate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_stages.compat.http import post
from slime_stages.compat.processing import encode_image_for_rollout_engine
from slime_stages.errors import DataError, UsageError
from slime_stages.sample import Sample


async def reward_func(args: Any, sample: Sample, **_: Any) -> dict[str, Any]:
    """What the teacher says of the response's tokens, and of one before them, as slime's own hooks read it."""
    if not args.rm_url:
        raise UsageError("no teacher is named", hint="--rm-url http://TEACHER:PORT/generate")
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
    answer = await post(args.rm_url, asked)
    entries = answer["meta_info"]["input_token_logprobs"]
    return {"meta_info": {"input_token_logprobs": entries[-sample.response_length - 1 :]}}


def post_process_rewards(args: Any, samples: Sequence[Sample], **_: Any) -> tuple[list[float], list[float]]:
    """Zeros, raw and to train on: all that is learnt comes from the teacher's log-probs, which the samples get."""
    for sample in samples:
        sample.teacher_log_probs = _of_response(sample)
    zeros = [0.0] * len(samples)
    return zeros, zeros


def _of_response(sample: Sample) -> list[float]:
    try:
        assert isinstance(sample.reward, dict)
        entries = sample.reward["meta_info"]["input_token_logprobs"][1:]
        found = [float(entry[0]) for entry in entries[len(entries) - sample.response_length :]]
    except (AssertionError, KeyError, TypeError) as error:
        raise DataError(
            f"the reward of sample {sample.index} is not what a teacher says of its tokens: {str(sample.reward)[:100]}",
            hint="--custom-rm-path slime.rollout.on_policy_distillation.reward_func, without --reward-key",
        ) from error
    if len(found) != sample.response_length:
        raise DataError(
            f"the teacher has {len(found)} log-probs for the {sample.response_length} tokens of sample {sample.index}",
            hint="teacher and policy need the same tokenizer",
        )
    return found

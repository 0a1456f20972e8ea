"""slime's rollout function for supervised fine-tuning: conversations of the prompt data in place of answers.

Whatever the assistant says in them is trained on, by `--loss-mask-type`. It needs no engine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from slime_stages.data.loss_masks import MaskedTokens, mask_messages
from slime_stages.errors import DataError, SlimeStagesError, UsageError
from slime_stages.generation.functions import RolloutFnTrainOutput
from slime_stages.prompts.tokenizer import load_tokenizer
from slime_stages.sample import Sample, Status

_tokenizer = cache(load_tokenizer)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """The next conversations as finished samples, each with the reward 0, which `sft_loss` does not look at.

    One in which the assistant says nothing has no response, and is not trained on; slime stops there.
    """
    if evaluation:
        raise UsageError(
            "conversations that are there already evaluate nothing",
            hint="--eval-function-path slime.rollout.sglang_rollout.generate_rollout, which asks the model",
        )
    if args.n_samples_per_prompt != 1:
        raise UsageError(
            f"{args.n_samples_per_prompt} samples of a conversation would all be the same",
            hint="--n-samples-per-prompt 1",
        )
    tokenizer = _tokenizer(Path(args.hf_checkpoint))
    groups = data_source.get_samples(args.rollout_batch_size)
    for [sample] in groups:
        _fill(sample, _masked(sample, tokenizer, args.loss_mask_type), tokenizer)
    return RolloutFnTrainOutput(samples=groups)


generate_rollout.uses_engines = False  # type: ignore[attr-defined]


def _masked(sample: Sample, tokenizer: Any, kind: Any) -> MaskedTokens:
    import jinja2

    where = f"prompt {sample.prompt_id} (position {sample.group_index})"
    if isinstance(sample.prompt, str):
        raise UsageError(
            f"{where} is text, not chat messages",
            hint="--input-key with the column of the messages, and no --apply-chat-template",
        )
    try:
        return mask_messages(tokenizer, sample.prompt, kind, tools=(sample.metadata or {}).get("tools"))
    except SlimeStagesError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{where}: the chat template refuses it: {error}", hint="look at the roles and contents of its messages"
        ) from error


def _fill(sample: Sample, masked: MaskedTokens, tokenizer: Any) -> None:
    first = len(masked.tokens) - masked.response_length
    sample.tokens, sample.response_length = masked.tokens, masked.response_length
    sample.loss_mask = masked.mask[first:]
    sample.response = tokenizer.decode(masked.tokens[first:])
    sample.reward, sample.status = 0.0, Status.COMPLETED

"""slime's functions on logits, for losses of the user's that call them: by slime's names and arguments.

`logits` are what `custom_loss_function_path` gets: [N, V / tp], a row for each response token of the micro-batch, where
slime has one for every token of it. Lists have an entry for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slime_stages.config.hooks import BY_SETTING, load_hook
from slime_stages.errors import UsageError
from stages.train import corrections
from stages.train.algorithm.kl import approx_kl
from stages.train.algorithm.losses import ClipRange, off_policy_kept, policy_loss
from stages.train.algorithm.mismatch import log_prob_abs_diff
from stages.train.algorithm.ratios import exp_log_ratio
from stages.train.megatron.log_probs import entropies_of, keep_nuclei, log_probs_of, scale_logits
from stages.train.megatron.packing import Nuclei
from stages.train.micro_batch import TokenView
from stages.train.replay import NUCLEUS_COLUMNS

Reducer = Callable[[Tensor], Tensor]
Losses = tuple[Tensor, dict[str, Tensor]]


def get_responses(
    logits: Tensor,
    *,
    args: Any,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    apply_temperature: bool = True,
    max_seq_lens: Any = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The logits [R, V / tp] and the tokens [R] of each sample's response."""
    _check(logits, response_lengths)
    rows = scale_logits(logits, args.rollout_temperature if apply_temperature else 1.0)
    for chunk, tokens in zip(torch.split(rows, list(response_lengths)), unconcat_tokens, strict=True):
        yield chunk, tokens[len(tokens) - len(chunk) :]


def get_log_probs_and_entropy(
    logits: Tensor,
    *,
    args: Any,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool = False,
    non_loss_data: bool = True,
    top_p_token_ids: Sequence[Any] | None = None,
    top_p_token_offsets: Sequence[Any] | None = None,
    max_seq_lens: Any = None,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Nothing, and each sample's `log_probs` [R], and `entropy` [R] if asked for; the logits stay as they are.

    Entropies have a gradient where `entropy_coef` gives it any use.
    """
    _check(logits, response_lengths)
    targets = torch.cat(
        [tokens[len(tokens) - length :] for tokens, length in zip(unconcat_tokens, response_lengths, strict=True)]
    )
    rows = scale_logits(logits, args.rollout_temperature)
    found = {}
    if with_entropy:
        found["entropy"] = entropies_of(rows, with_gradient=bool(args.entropy_coef))
    if top_p_token_ids is not None and top_p_token_offsets is not None:
        rows = keep_nuclei(rows, _nuclei(top_p_token_ids, top_p_token_offsets), targets)
    found["log_probs"] = log_probs_of(rows.clone(), targets)
    lengths = list(response_lengths)
    return logits.new_empty(0), {name: list(torch.split(values, lengths)) for name, values in found.items()}


def get_rollout_top_p_logprob_kwargs(args: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """What `get_log_probs_and_entropy` needs of the tokens that samples were drawn from; empty for all of them."""
    return {name.removeprefix("rollout_"): batch[name] for name in NUCLEUS_COLUMNS if name in batch}


def compute_log_probs(logits: Tensor, tokens: Tensor, process_group: Any = None) -> Tensor:
    """[N, 1], of tokens [N] under logits [N, V / tp], which are overwritten, as by slime's."""
    return log_probs_of(logits, tokens).unsqueeze(-1)


def compute_entropy_from_logits(logits: Tensor, process_group: Any = None) -> Tensor:
    return entropies_of(logits, with_gradient=torch.is_grad_enabled())


def calculate_log_probs_and_entropy(
    logits: Tensor,
    tokens: Tensor,
    tp_group: Any = None,
    with_entropy: bool = False,
    chunk_size: int = -1,
    with_entropy_grad: bool = True,
    log_prob_keep_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """[N, 1] log-probs, among the tokens of `log_prob_keep_mask` [N, V / tp] alone, and [N] entropies among all."""
    entropy = entropies_of(logits, with_gradient=with_entropy_grad) if with_entropy else None
    kept = logits.clone() if log_prob_keep_mask is None else logits.masked_fill(~log_prob_keep_mask, float("-inf"))
    return compute_log_probs(kept, tokens), entropy


def policy_loss_function(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Reducer) -> Losses:
    """What `loss_type = "policy_loss"` stands for, with `batch` as it is now, and what that says of itself."""
    _, scores = get_log_probs_and_entropy(
        logits, args=args, with_entropy=True, **_own(batch), **get_rollout_top_p_logprob_kwargs(args, batch)
    )
    log_probs, entropies = torch.cat(scores["log_probs"]), torch.cat(scores["entropy"])
    view = _view(batch, logits.device)
    train, mask = view.columns.get("log_probs", log_probs.detach()), view.columns["mask"]
    old = view.columns["rollout_log_probs"] if args.use_rollout_logprobs else train
    token_loss, metrics = _policy_terms(args, view, log_probs, old)
    unmasked = _gaps(args, view, log_probs.detach() if args.use_rollout_logprobs else train, metrics["ppo_kl"])
    if corrections.is_on(args):
        token_loss, mask, found = _corrected(args, batch, view, token_loss, train)
        unmasked |= found
    terms = {"pg_loss": _reduced(args, batch, view, token_loss, mask, sum_of_sample_mean)}
    loss = terms["pg_loss"]
    terms["entropy_loss"] = sum_of_sample_mean(entropies * mask)
    if args.entropy_coef:
        loss = loss - args.entropy_coef * terms["entropy_loss"]
    if args.use_kl_loss:
        ratio = exp_log_ratio(log_probs - old) if args.use_unbiased_kl else None
        kl = approx_kl(log_probs, view.columns["ref_log_probs"], args.kl_loss_type, ratio)
        terms["kl_loss"] = sum_of_sample_mean(kl * mask)
        loss = loss + args.kl_loss_coef * terms["kl_loss"]
    terms |= {name: sum_of_sample_mean(values * mask) for name, values in metrics.items()}
    terms |= {name: sum_of_sample_mean(values) for name, values in unmasked.items()}
    return loss, {name: value.detach() for name, value in {"loss": loss, **terms}.items()}


def sft_loss_function(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Reducer) -> Losses:
    """Minus the log-likelihood of the responses."""
    _, scores = get_log_probs_and_entropy(logits, args=args, **_own(batch))
    loss = -sum_of_sample_mean(torch.cat(scores["log_probs"]))
    return loss, {"loss": loss.detach()}


def _own(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}


def _view(batch: dict[str, Any], device: torch.device) -> TokenView:
    """The batch on one axis of tokens, with what the user's function may have put in place of what it got."""
    lengths = list(batch["response_lengths"])
    names = ("advantages", "log_probs", "rollout_log_probs", "ref_log_probs")
    columns = {name: torch.cat(list(batch[name])).to(device) for name in names if batch.get(name) is not None}
    columns["mask"] = torch.cat(list(batch["loss_masks"])).to(device, torch.float32)
    sample_index = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(lengths, device=device))
    return TokenView(columns=columns, sample_index=sample_index, positions=list(range(len(lengths))), lengths=lengths)


def _policy_terms(args: Any, view: TokenView, log_probs: Tensor, old: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The estimator's loss [N] without any correction, and its metrics [N]."""
    advantages = view.columns["advantages"]
    of_samples: dict[str, Any] = {
        "loss_mask": view.columns["mask"],
        "sample_index": view.sample_index,
        "sample_count": view.sample_count,
    }
    clip = ClipRange(eps_clip=args.eps_clip, eps_clip_high=args.eps_clip_high, eps_clip_c=args.eps_clip_c)
    found = policy_loss(args.advantage_estimator, log_probs, old, advantages, clip=clip, **of_samples)
    metrics = {"ppo_kl": found.ppo_kl, "pg_clipfrac": found.pg_clipfrac}
    if not args.use_opsm:
        return found.pg_loss, metrics
    kept = off_policy_kept(log_probs, old, advantages, opsm_delta=args.opsm_delta, **of_samples)
    return found.pg_loss * kept, metrics | {"opsm_clipfrac": 1 - kept}


def _gaps(args: Any, view: TokenView, trained: Tensor, ppo_kl: Tensor) -> dict[str, Tensor]:
    """[N] each: how far the engine is from the trainer, on all tokens whether they are left out later or not."""
    rollout = view.columns.get("rollout_log_probs")
    gaps = {} if rollout is None else {"train_rollout_logprob_abs_diff": log_prob_abs_diff(trained, rollout)}
    return gaps | ({"ois": exp_log_ratio(-ppo_kl)} if corrections.is_on(args) else {})


def _corrected(
    args: Any, batch: dict[str, Any], view: TokenView, token_loss: Tensor, train: Tensor
) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    if args.custom_tis_function_path is not None:
        function = load_hook(BY_SETTING["custom_tis_function_path"], args.custom_tis_function_path)
        return corrections.custom_correction(function, args, view, batch, token_loss, train)
    if args.tis_batch_normalize:
        raise UsageError(
            "tis_batch_normalize is about a whole step, and policy_loss_function sees a micro-batch of it",
            hint='leave it out, or use loss_type = "policy_loss"',
        )
    found = corrections.corrected(args, view, train, mean_weight=None)
    return token_loss * found.weights, view.columns["mask"] if found.mask is None else found.mask, found.metrics


def _reduced(
    args: Any, batch: dict[str, Any], view: TokenView, token_loss: Tensor, mask: Tensor, reduce: Reducer
) -> Tensor:
    if (path := args.custom_pg_loss_reducer_function_path) is None:
        return reduce(token_loss * mask)
    function = load_hook(BY_SETTING["custom_pg_loss_reducer_function_path"], path)
    reduced: Tensor = function(batch["total_lengths"], view.lengths, view.split(mask), args.calculate_per_token_loss)(
        token_loss
    )
    return reduced


def _nuclei(ids: Sequence[Any], offsets: Sequence[Any]) -> Nuclei:
    """Of all samples one after the other."""
    counts = np.concatenate([np.diff(np.asarray(each, np.int64)) for each in offsets])
    flat = np.concatenate([np.asarray(each, np.int64) for each in ids])
    return Nuclei(ids=flat, offsets=np.concatenate([[0], np.cumsum(counts)]))


def _check(logits: Tensor, response_lengths: Sequence[int]) -> None:
    if logits.dim() != 2 or len(logits) != sum(response_lengths):
        raise UsageError(
            f"logits of shape {tuple(logits.shape)} are no row for each of {sum(response_lengths)} response tokens",
            hint="hand on the logits that the loss function got, which have no rows for prompts here",
        )

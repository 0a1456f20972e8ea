"""A loss that adds to slime's own, advantages of one's own, and a log: written for slime, importing nothing else."""

import torch
from megatron.core import mpu
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, get_responses, policy_loss_function
from slime.utils.ppo_utils import compute_approx_kl, compute_log_probs, compute_policy_loss, get_grpo_returns

TOP_K = 4


def slimes_own(args, batch, logits, sum_of_sample_mean):
    return policy_loss_function(args, batch, logits, sum_of_sample_mean)


def clipped_with_anchor(args, batch, logits, sum_of_sample_mean):
    """The clipped loss put together by hand, and the KL to the engine's policy on top."""
    _, scores = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
        max_seq_lens=batch.get("max_seq_lens"),
    )
    log_probs = torch.cat(scores["log_probs"])
    old, engine = torch.cat(batch["log_probs"]), torch.cat(batch["rollout_log_probs"])
    losses, clipped = compute_policy_loss(
        old - log_probs, torch.cat(batch["advantages"]), args.eps_clip, args.eps_clip_high
    )
    anchor = sum_of_sample_mean(compute_approx_kl(log_probs, engine, kl_loss_type="k3"))
    pg_loss = sum_of_sample_mean(losses)
    return pg_loss + 0.1 * anchor, {
        "pg_loss": pg_loss.detach(),
        "anchor": anchor.detach(),
        "entropy_loss": sum_of_sample_mean(torch.cat(scores["entropy"])).detach(),
        "pg_clipfrac": sum_of_sample_mean(clipped),
    }


def likelihood_and_head_mass(args, batch, logits, sum_of_sample_mean):
    """What the responses' tokens cost, and the probability of the likeliest few, sample by sample."""
    group = mpu.get_tensor_model_parallel_group()
    costs, masses = [], []
    for rows, tokens in get_responses(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    ):
        costs.append(-compute_log_probs(rows.clone(), tokens, group).squeeze(-1))
        masses.append(rows.detach().softmax(-1).topk(TOP_K).values.sum(-1))
    loss = sum_of_sample_mean(torch.cat(costs))
    return loss, {"loss": loss.detach(), "head_mass": sum_of_sample_mean(torch.cat(masses))}


def advantages(args, rollout_data):
    """As grpo, with twice the pull on a response's last token."""
    kl = rollout_data["kl"]
    rewards = torch.tensor(rollout_data["rewards"], dtype=torch.float32, device=kl[0].device)
    returns = get_grpo_returns(rewards, kl)
    rollout_data["returns"] = returns
    rollout_data["advantages"] = [torch.cat([row[:-1], 2 * row[-1:]]) for row in returns]

"""One side of `train_step.py`, which starts it: optimizer steps on the same samples, each with its seconds.

python -m benchmarks.train_sides transformers --model FOLDER --steps 3 --output steps.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.train_samples import (
    LEARNING_RATE,
    MICRO_BATCH,
    PACKED_TOKENS,
    Outcome,
    Sample,
    make_samples,
    peak_bytes,
)
from benchmarks.train_trl import by_trl


def main() -> None:
    parser = argparse.ArgumentParser(description="write the seconds of optimizer steps")
    parser.add_argument("side", choices=[*SIDES, "memory"])
    parser.add_argument("--model")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="of each prompt")
    parser.add_argument("--steps", type=int, default=2, help="to measure, after one to warm up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=-1, help="for `memory`")
    parser.add_argument("--tokens", type=int, default=1024, help="of the response, for `memory`")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    if args.side == "memory":
        outcome = memory_of(args.chunk, args.tokens)
    else:
        outcome = SIDES[args.side](args.model, make_samples(args.model, args.prompts, args.samples), args.steps + 1)
        outcome.seconds, outcome.cpu_seconds = outcome.seconds[1:], outcome.cpu_seconds[1:]
        outcome.peak_bytes = peak_bytes()
    args.output.write_text(json.dumps(asdict(outcome)))


def advantages(samples: list[Sample]) -> list[float]:
    """Rewards, centred and scaled within their groups."""
    rewards = np.array([sample.reward for sample in samples]).reshape(samples[-1].group + 1, -1)
    centred = rewards - rewards.mean(1, keepdims=True)
    scaled: list[float] = (centred / (centred.std(1, ddof=1, keepdims=True) + 1e-6)).ravel().tolist()
    return scaled


def ours(model: str, samples: list[Sample], steps: int) -> Outcome:
    """The train stage between reading and saving: advantages, packing, forward, backward, metrics, Adam."""
    from slime_stages.config import resolve
    from stages.train.megatron import packing
    from stages.train.megatron.step import Trainer
    from stages.train.policy import trainer_settings
    from stages.train.steps import train_steps

    count = samples[-1].group + 1
    settings = {
        "hf_checkpoint": model,
        "prompt_data": "/none.jsonl",
        "rollout_batch_size": count,
        "n_samples_per_prompt": len(samples) // count,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": PACKED_TOKENS,
        "lr": LEARNING_RATE,
        "weight_decay": 0.0,
    }
    config, outcome = resolve(None, settings).config, Outcome()
    trainer, data = Trainer(Path(model), trainer_settings(config)), iteration_of(samples, config)
    original = packing.pack_samples

    def counted(*arguments: Any, **named: Any) -> Any:
        packed = original(*arguments, **named)
        outcome.positions += len(packed.tokens)
        return packed

    packing.pack_samples = counted
    for step in range(steps):
        outcome.positions = 0
        with outcome.timed():
            train_steps(trainer, data, config, title=f"step {step}")
    return outcome


def iteration_of(samples: list[Sample], config: Any) -> Any:
    import pyarrow as pa

    from slime_stages.data.sample_table import samples_table
    from slime_stages.sample import Sample as Row
    from slime_stages.sample import Status
    from stages.train.batch import batch_of

    rows = []
    for index, sample in enumerate(samples):
        row = Row(index=index, group_index=sample.group, rollout_id=index, tokens=sample.prompt)
        row.append_response_tokens(None, tokens=sample.response, log_probs=[-1.0] * len(sample.response), text="")
        row.status = Status.COMPLETED
        rows.append(row)
    table = samples_table(rows, iteration=0, shard=0).drop_columns(["reward", "reward_parts"])
    table = table.append_column("reward", pa.array([sample.reward for sample in samples], pa.float64()))
    return batch_of(table.append_column("reward_parts", pa.nulls(len(table), pa.string())), config)


def by_transformers(model: str, samples: list[Sample], steps: int) -> Outcome:
    """What one would write by hand: samples of like lengths padded together, logits of responses only, fused AdamW."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    scored = sorted(zip(samples, advantages(samples), strict=True), key=lambda pair: len(pair[0].tokens))
    outcome = Outcome()
    for _ in range(steps):
        outcome.positions = 0
        with outcome.timed():
            for start in range(0, len(scored), MICRO_BATCH):
                loss, positions = padded_loss(policy, scored[start : start + MICRO_BATCH], len(samples))
                loss.backward()
                outcome.positions += positions
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return outcome


def padded_loss(policy: Any, scored: list[tuple[Sample, float]], count: int) -> tuple[Any, int]:
    """GRPO's loss of a micro-batch, and the positions that it took."""
    import torch

    longest = max(len(sample.tokens) for sample, _ in scored)
    tokens = torch.zeros(len(scored), longest, dtype=torch.int64)
    mask = torch.zeros(len(scored), longest, dtype=torch.bool)
    weights = torch.zeros(len(scored), longest - 1)
    for row, (sample, _) in enumerate(scored):
        tokens[row, : len(sample.tokens)] = torch.tensor(sample.tokens)
        mask[row, : len(sample.tokens)] = True
        weights[row, len(sample.prompt) - 1 : len(sample.tokens) - 1] = 1 / len(sample.response) / count
    hidden = policy.model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]
    chosen = weights > 0
    logits = policy.lm_head(hidden[chosen])
    log_probs = -torch.nn.functional.cross_entropy(logits, tokens[:, 1:][chosen], reduction="none")
    ratio = (log_probs - log_probs.detach()).exp()
    gains = torch.tensor([gain for _, gain in scored]).unsqueeze(1).expand_as(weights)[chosen]
    losses = torch.maximum(-ratio * gains, -ratio.clamp(0.8, 1.2) * gains)
    return (losses * weights[chosen]).sum(), tokens.numel()


def memory_of(chunk: int, count: int) -> Outcome:
    """A step of a model that is nearly all vocabulary; `peak_bytes` are those beyond what it took before."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from stages.train.megatron.packing import PackedSample, pack_samples
    from stages.train.megatron.settings import TrainerSettings
    from stages.train.megatron.step import Trainer

    outcome = Outcome(vocabulary=150_000, positions=count)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True}
    with tempfile.TemporaryDirectory() as folder:
        Qwen3ForCausalLM(Qwen3Config(vocab_size=outcome.vocabulary, **shape, **heads)).save_pretrained(folder)
        trainer = Trainer(Path(folder), TrainerSettings(log_probs_chunk_size=chunk))

    def run(length: int) -> None:
        tokens = np.random.default_rng(3).integers(0, outcome.vocabulary, length + 16)
        packed = pack_samples([PackedSample(tokens=tokens, response_length=length)])
        trainer.train_step([packed], lambda _, log_probs, entropies: (log_probs.mean(), {}), entropy="value")

    run(8)  # buffers of the optimizer, and whatever is loaded late
    before = peak_bytes()
    with outcome.timed():
        run(count)
    outcome.peak_bytes = peak_bytes() - before
    return outcome


SIDES: dict[str, Callable[[str, list[Sample], int], Outcome]] = {
    "slime-stages": ours,
    "transformers": by_transformers,
    "trl": by_trl,
}

if __name__ == "__main__":
    main()

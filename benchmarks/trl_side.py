"""TRL's `GRPOTrainer` on the quick start's task, timed part by part. `iteration.py` starts it.

python -m benchmarks.trl_side --steps 4 --threads 2 --output steps.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

MODEL = "models/SmolLM2-135M-Instruct"
PROMPTS = "examples/quickstart/data/train.jsonl"
PROMPT_COUNT, GENERATION_COUNT, RESPONSE_TOKENS = 8, 8, 8


class Clock:
    """Adds up seconds by part; a `step` is what lies between two ends of optimizer steps."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.steps: list[dict[str, Any]] = []
        self.began = time.time()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with its seconds added to `part`."""

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - started

        return wrapper

    def end_step(self) -> None:
        """Close a step; parts that contain others are reduced to what is their own."""
        ended, parts = time.time(), self.parts
        own = {
            "generate": parts["generate"],
            "reward": parts["reward"],
            "prepare": parts["prepare"] - parts["generate"] - parts["reward"],
            "forward and backward": parts["training_step"] - parts["prepare"],
            "optimizer": parts["optimizer"],
        }
        own["other"] = ended - self.began - sum(own.values())
        self.steps.append({"started": self.began, "finished": ended, "parts": own})
        self.parts, self.began = {}, ended


def main() -> None:
    parser = argparse.ArgumentParser(description="write the seconds of GRPOTrainer's steps")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    clock = train(args.steps, args.threads)
    args.output.write_text(json.dumps(clock.steps))


def train(steps: int, threads: int) -> Clock:
    """The steps, with nothing logged or saved."""
    import torch
    from datasets import load_dataset
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(threads)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=MODEL,
            reward_funcs=cast(Any, score),  # may be a coroutine function, which its annotation leaves out
            args=settings(steps, folder),
            train_dataset=load_dataset("json", data_files=PROMPTS, split="train"),
        )
        watch(trainer, clock)
        clock.began = time.time()
        trainer.train()
    return clock


def settings(steps: int, folder: str) -> Any:
    """The quick start's settings, and of TRL's own the fastest that were found for a CPU."""
    from trl.trainer.grpo_config import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=PROMPT_COUNT * GENERATION_COUNT,
        num_generations=GENERATION_COUNT,
        max_completion_length=RESPONSE_TOKENS,
        max_steps=steps,
        beta=0.0,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


async def score(completions: list[Any], label: list[str], **columns: Any) -> list[float]:
    """The quick start's reward, as TRL calls rewards."""
    from examples.quickstart.reward import reward

    texts = [completion[0]["content"] for completion in completions]
    return [
        await reward(None, SimpleNamespace(response=text, label=each)) for text, each in zip(texts, label, strict=True)
    ]


def watch(trainer: Any, clock: Clock) -> None:
    """Have the trainer's methods report to the clock."""
    from transformers import TrainerCallback

    class StepEnd(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.end_step()

    trainer.add_callback(StepEnd())
    for method, part in (
        ("_generate_single_turn", "generate"),
        ("_calculate_rewards", "reward"),
        ("_prepare_inputs", "prepare"),
        ("training_step", "training_step"),
    ):
        setattr(trainer, method, clock.timed(part, getattr(trainer, method)))
    trainer.create_optimizer()
    trainer.optimizer.step = clock.timed("optimizer", trainer.optimizer.step)


if __name__ == "__main__":
    main()

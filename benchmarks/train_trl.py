"""TRL's side of `train_step.py`: only what `GRPOTrainer` does after generating and scoring is timed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.train_samples import LEARNING_RATE, LONGEST_RESPONSE, MICRO_BATCH, Outcome, Sample


def by_trl(model: str, samples: list[Sample], steps: int) -> Outcome:
    """`GRPOTrainer`, with responses that are there already; only its forward, backward and optimizer count."""
    from datasets import Dataset
    from trl.trainer.grpo_trainer import GRPOTrainer

    rows = [{"prompt": str(group)} for group in range(samples[-1].group + 1)]
    count = len(samples) // len(rows)
    left = {group: [sample for sample in samples if sample.group == group] for group in range(len(rows))}

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        taken = {group: iter(each) for group, each in left.items()}
        chosen = [next(taken[int(prompt)]) for prompt in prompts]
        return {
            "prompt_ids": [sample.prompt for sample in chosen],
            "completion_ids": [sample.response for sample in chosen],
            "logprobs": None,
        }

    def score(completions: list[Any], **columns: Any) -> list[float]:
        return [float(number % 2) for number in range(len(completions))]

    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=score,
            args=trl_settings(folder, len(samples), count, steps),
            train_dataset=Dataset.from_list(rows),
            rollout_func=rollout,
        )
        watch_trl(trainer, outcome, len(samples) // MICRO_BATCH)
        trainer.train()
    longest = max(len(sample.prompt) for sample in samples) + max(len(sample.response) for sample in samples)
    outcome.positions = len(samples) * longest
    return outcome


def trl_settings(folder: str, total: int, count: int, steps: int) -> Any:
    from trl.trainer.grpo_config import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=total // MICRO_BATCH,
        num_generations=count,
        max_completion_length=LONGEST_RESPONSE,
        max_steps=steps,
        loss_type="grpo",
        beta=0.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
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


def watch_trl(trainer: Any, outcome: Outcome, passes: int) -> None:
    """Add up what its methods take, without the part that generates and scores."""
    clock = {"wall": 0.0, "cpu": 0.0, "passes": 0}

    def timed(function: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                clock["wall"] += sign * (time.perf_counter() - wall)
                clock["cpu"] += sign * (time.process_time() - cpu)

        return wrapper

    step = timed(trainer.create_optimizer().step, 1)

    def last(*arguments: Any, **named: Any) -> Any:
        result = step(*arguments, **named)
        outcome.seconds.append(clock["wall"])
        outcome.cpu_seconds.append(clock["cpu"])
        clock.update(wall=0.0, cpu=0.0)
        return result

    trainer.training_step = timed(trainer.training_step, 1)
    trainer._prepare_inputs = timed(trainer._prepare_inputs, -1)
    trainer.optimizer.step = last

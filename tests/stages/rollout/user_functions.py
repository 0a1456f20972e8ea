"""Rollout functions, a data source and log functions as somebody might write them; none of them needs an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime_stages.generation.functions import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime_stages.sample import Sample, Status

LOGGED: list[Any] = []


def answered(args: Any, sample: Sample, tokens: list[int]) -> Sample:
    sample.append_response_tokens(args, tokens=tokens, log_probs=[-0.5] * len(tokens), text=f"{sample.index}")
    sample.status = Status.COMPLETED
    return sample


def roll(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """Every sample answers with its number in the group, last group first."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        for number, sample in enumerate(group):
            answered(args, sample, [number + 1])
    return RolloutFnTrainOutput(samples=groups[::-1], metrics={"rollout/own": float(rollout_id + len(groups))})


def roll_some(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[Any]:
    """Of three prompts asked, one is returned, one given back, and one forgotten."""
    first, second, _ = data_source.get_samples(3)
    data_source.add_samples([second])
    return [[answered(args, sample, [1]) for sample in first]]


def roll_nothing(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[Any]:
    return []


def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnEvalOutput:
    """Even samples are right, the first one is truncated."""
    assert evaluation
    [dataset] = args.eval_datasets
    samples = [sample for group in data_source.get_samples(len(data_source)) for sample in group]
    for sample in samples:
        answered(args, sample, [7] * dataset.max_response_len)
    rewards = [1.0 - number % 2 for number in range(len(samples))]
    truncated = [number == 0 for number in range(len(samples))]
    return RolloutFnEvalOutput(
        data={dataset.name: {"samples": samples, "rewards": rewards, "truncated": truncated}},
        metrics={f"eval/{dataset.name}/own": 2},
    )


def log_rollout(rollout_id: int, args: Any, samples: list[Sample], extra_metrics: Any, rollout_time: float) -> bool:
    LOGGED.append((rollout_id, [sample.reward for sample in samples], dict(extra_metrics), rollout_time))
    return True


def log_evaluation(rollout_id: int, args: Any, data: dict[str, Any], extra_metrics: Any) -> bool:
    raise RuntimeError("the server of metrics is away")


class Counter:
    """Prompts `word 0`, `word 1` ...; those given back come first."""

    def __init__(self, args: Any) -> None:
        self.args, self.next, self.back = args, 0, 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        groups = []
        for _ in range(num_samples):
            groups.append([Sample(prompt=f"word {self.next}") for _ in range(self.args.n_samples_per_prompt)])
            self.next += 1
        return groups

    def add_samples(self, samples: list[list[Sample]]) -> None:
        self.back += len(samples)

    def save(self, rollout_id: int) -> None:
        state = {"after": rollout_id, "next": self.next, "back": self.back}
        (Path(self.args.save) / "state.json").write_text(json.dumps(state))

    def load(self, rollout_id: int | None = None) -> None:
        state = json.loads((Path(self.args.load) / "state.json").read_text())
        assert state["after"] == rollout_id
        self.next, self.back = state["next"], state["back"]

    def __len__(self) -> int:
        return 1000


for _function in (roll, roll_some, roll_nothing, evaluate):
    _function.uses_engines = False  # type: ignore[attr-defined]

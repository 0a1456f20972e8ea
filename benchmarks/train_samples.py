"""What the sides of `train_step.py` have in common: samples, settings, and how an outcome is told."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LEARNING_RATE = 2e-5
MICRO_BATCH = 4
"""Samples of one forward pass where they are padded; ours are packed up to `PACKED_TOKENS`."""
PACKED_TOKENS = 2048
LONGEST_PROMPT, LONGEST_RESPONSE = 160, 320


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A prompt and a response to it, which got a reward."""

    group: int
    prompt: list[int]
    response: list[int]
    reward: float

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one side did."""

    seconds: list[float] = field(default_factory=list)
    """Of each step, the first one not counted."""
    cpu_seconds: list[float] = field(default_factory=list)
    """The same over all threads, whatever else the machine does."""
    positions: int = 0
    """Positions that went through the model in a step; more than tokens where there is padding, fewer where a prompt
    is shared."""
    peak_bytes: int = 0
    vocabulary: int = 0
    """Of the measurement of memory."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(time.process_time() - cpu)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_samples(model: str, prompt_count: int, sample_count: int) -> list[Sample]:
    """Random tokens; lengths as of a model that mostly answers shortly, and now and then at length."""
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    random, samples = np.random.default_rng(7), []
    for group in range(prompt_count):
        prompt = random.integers(0, vocabulary, random.integers(40, LONGEST_PROMPT + 1)).tolist()
        for number in range(sample_count):
            length = int(np.clip(random.lognormal(4.2, 0.8), 8, LONGEST_RESPONSE))
            response = random.integers(0, vocabulary, length).tolist()
            samples.append(Sample(group=group, prompt=prompt, response=response, reward=float(number % 2)))
    return samples

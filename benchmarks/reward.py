"""What scoring in workers that can be killed costs and gains, beside a plain loop over the same grader.

    python benchmarks/reward.py --samples 2000 --answers answers.jsonl

Scores responses with reward type `math` three times: in a loop; in as many loops at once as there are workers, which
is the most that the machine has to give; and in a reward pool with its deadline, memory limit and replaced workers,
from the first task to the last answer; the pool's start is told apart. Rewards must be the same. All three in turns,
and of what the rounds say the median: processors of shared machines are faster at one time than at another.

`--answers` is a file of {"response", "label"}; without it they are solutions as models write them, in the forms of
answers that occur in the MATH problems, right and wrong, each with numbers of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from slime_stages.rewards.graders.math import grade_math
from slime_stages.rewards.hub import warm_up
from slime_stages.rewards.pool import RewardPool, RewardTask
from slime_stages.sample import Sample

ROUNDS = 7
Answer = tuple[str, str]

# A response's answer and its label; n and m are numbers that change from one sample to the next.
FORMS = [
    ("{n}", "{n}"),
    ("{n}", "{m}"),
    ("{n},{m}00", "{n}{m}00"),
    (r"\frac{{{n}}}{{{m}}}", r"\frac{{{n}}}{{{m}}}"),
    (r"\dfrac{{{n}}}{{{m}}}", r"\frac{{{m}}}{{{n}}}"),
    (r"{n}\sqrt{{{m}}}", r"{n}\sqrt{{{m}}}"),
    (r"\sqrt{{{n}}}", r"{m}\sqrt{{{n}}}"),
    (r"\frac{{{n}\sqrt{{3}}}}{{{m}}}", r"\frac{{{n}}}{{{m}}}\sqrt{{3}}"),
    (r"{n}\pi", r"{m}\pi"),
    (r"\frac{{{n}\pi}}{{{m}}}", r"\frac{{{n}}}{{{m}}}\pi"),
    ("{n}x+{m}", "{m}+{n}x"),
    ("x^2-{n}x+{m}", "x^2-{m}x+{n}"),
    ("(x-{n})(x+{m})", "(x+{m})(x-{n})"),
    ("({n},{m})", "({n}, {m})"),
    (r"\left({n},{m}\right]", "({n},{m}]"),
    (r"[{n},\infty)", r"[{m},\infty)"),
    (r"{n}^\circ", "{n}"),
    (r"{n}\%", r"{m}\%"),
    (r"\text{{(B)}}", r"\text{{(C)}}"),
    (r"x={n}", "{n}"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    answers = read_answers(options.answers) if options.answers else made_answers()
    answers = list(itertools.islice(itertools.cycle(answers), options.samples))
    warm_up(SimpleNamespace(rm_type="math"))  # the loops begin with what the pool's workers begin with

    rounds = [one_round(answers, options.workers) for _ in range(ROUNDS)]
    of_loop = processor_seconds(lambda: in_fresh_processes([answers]), lambda: in_fresh_processes([[]]))
    of_pool = processor_seconds(lambda: pooled(answers, options.workers), lambda: pooled([], options.workers))

    count = len(answers)
    alone, at_once, together, started = (statistics.median(each) for each in zip(*rounds, strict=True))
    most, gain = ([each[0] / each[side] for each in rounds] for side in (1, 2))
    overhead = statistics.median(each[2] - each[0] / options.workers for each in rounds) / count
    print(f"{count:,} answers; median of {ROUNDS} rounds")
    print(f"plain loop       {count / alone:>9,.0f} samples/s   {alone / count * 1e3:.2f} ms a sample")
    print(f"{options.workers} loops at once  {count / at_once:>9,.0f} samples/s   {spread(most)} times as fast")
    print(f"pool of {options.workers:<8} {count / together:>9,.0f} samples/s   started in {started:.2f} s")
    print(f"processor time   {of_loop / count * 1e3:.2f}, {of_pool / count * 1e3:.2f} ms a sample, loop and pool")
    print(f"the pool is {spread(gain)} times as fast as the plain loop,")
    print(f"and takes {overhead * 1e3:.2f} ms more for a sample than its share of the loop")


def one_round(answers: Sequence[Answer], workers: int) -> tuple[float, float, float, float]:
    """Seconds of the loop, of as many loops at once as workers, and of the pool, and those until it has begun."""
    alone, expected = in_fresh_processes([answers])
    at_once, _ = in_fresh_processes(shares(answers, workers))
    together, started, rewards = pooled(answers, workers)
    assert rewards == expected, "the pool's rewards are not the loop's"
    return alone, at_once, together, started


def spread(ratios: Sequence[float]) -> str:
    """The median, and all."""
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})"


def processor_seconds(work: Callable[[], object], nothing: Callable[[], object]) -> float:
    """Of all processes, less what the same costs without samples. Other work on the machine matters less to it."""
    spent = []
    for each in (nothing, work):
        before = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        each()
        after = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        spent.append(after - before)
    return spent[1] - spent[0]


def shares(answers: Sequence[Answer], count: int) -> list[Sequence[Answer]]:
    """As many neighbours each, so that every form of answer is as frequent in all."""
    ends = [round(len(answers) * part / count) for part in range(count + 1)]
    return [answers[start:end] for start, end in itertools.pairwise(ends)]


def in_fresh_processes(parts: Sequence[Sequence[Answer]]) -> tuple[float, list[float]]:
    """Seconds of the slowest of the loops, each in a process of its own, and all rewards.

    What a loop has seen before, it does not work out again: as the pool's workers, it begins without that.
    """
    with contextlib.ExitStack() as stack:
        fork = multiprocessing.get_context("fork")
        executors = [stack.enter_context(ProcessPoolExecutor(1, mp_context=fork)) for _ in parts]
        loops = [executor.submit(plain_loop, part) for executor, part in zip(executors, parts, strict=True)]
        results = [loop.result() for loop in loops]
    return max(seconds for seconds, _ in results), [reward for _, rewards in results for reward in rewards]


def plain_loop(answers: Sequence[Answer]) -> tuple[float, list[float]]:
    """Seconds, and the rewards."""
    started = time.perf_counter()
    rewards = [float(grade_math(response, label)) for response, label in answers]
    return time.perf_counter() - started, rewards


def pooled(answers: Sequence[Answer], workers: int) -> tuple[float, float, list[float]]:
    """Seconds for scoring, seconds until the first answer of a new pool, and the rewards."""
    begun = time.perf_counter()
    with RewardPool(
        {"rm_type": "math"}, workers=workers, timeout_seconds=60.0, memory_bytes=16 << 30, tasks_per_worker=1000
    ) as pool:
        list(pool.score(tasks(answers[: 2 * workers])))
        started = time.perf_counter()
        outcomes = list(pool.score(tasks(answers)))
        seconds = time.perf_counter() - started
    rewards = {int(outcome.key): outcome.rewards[0] for outcome in outcomes}
    return seconds, started - begun, [float(rewards[row]) for row in range(len(answers))]  # type: ignore[arg-type]


def tasks(answers: Sequence[Answer]) -> Iterator[RewardTask]:
    for row, (response, label) in enumerate(answers):
        sample = Sample(response=response, label=label).to_dict()
        yield RewardTask(key=str(row), samples=[sample], is_list=False)


def read_answers(path: Path) -> list[Answer]:
    rows = map(json.loads, path.read_text().splitlines())
    return [(row["response"], str(row["label"])) for row in rows]


def made_answers() -> Iterator[Answer]:
    dice = random.Random(0)
    steps = "We set up the equation, expand both sides and collect terms, which gives $x^2 + 3x = 10$.\n" * 20
    for answer, label in itertools.cycle(FORMS):
        numbers = {"n": dice.randint(2, 97), "m": dice.randint(2, 97)}
        yield f"{steps}So the answer is $\\boxed{{{answer.format(**numbers)}}}$.", label.format(**numbers)


if __name__ == "__main__":
    main()

"""Several agents on one problem: solvers write, rewriters improve what they see, a selector chooses.

Every call of the model becomes a sample of its own, and all of them are trained on: siblings of one execution, which
count as one in the loss. Names are slime's: the file runs there as it does here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from slime.rollout.rm_hub import batched_async_rm
from slime.rollout.sglang_rollout import GenerateState
from slime.rollout.sglang_rollout import generate as ask_model
from slime.utils.types import Sample

THOUGHT_END = "</think>"
CHOICE = re.compile(r"Judgment:\s*(\d+)")
REWRITE = "{problem}\n\nOthers have written:\n\n{answers}\n\nWrite the best answer that you can make of these."
SELECT = "{problem}\n\nWhich of these is right?\n\n{answers}\n\nEnd with `Judgment: ` and its number."


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Sample]:
    """All samples of one execution, each with its reward; of an evaluation, the chosen answer alone."""
    team = Team(args, sample, sampling_params)
    solvers = await team.ask_all("solver", "{problem}")
    rewriters: list[Sample] = []
    selector, chosen = None, None
    if answers := answers_of(solvers):
        rewriters = await team.ask_all("rewriter", REWRITE, answers)
    if candidates := [one for one in rewriters if answer_of(one)]:
        selector = await team.ask("selector", SELECT, answers_of(candidates))
        chosen = chosen_of(selector, candidates)
    if evaluation:
        return [chosen or (candidates or solvers)[0]]
    return await rewarded(args, [*solvers, *rewriters], selector, chosen)


async def rewarded(args: Any, writers: list[Sample], selector: Sample | None, chosen: Sample | None) -> list[Sample]:
    """Writers get what the run's reward function says, the selector what it chose; all more if that was right."""
    made = [*writers, *([selector] if selector else [])]
    if any(one.status == Sample.Status.ABORTED for one in made):
        return made  # the execution begins anew
    for writer, reward in zip(writers, await batched_async_rm(args, writers), strict=True):
        writer.reward = reward
        writer.reward = writer.get_reward_value(args)
    factor = args.multi_agent_right if chosen and chosen.reward == 1 else args.multi_agent_wrong
    if selector:
        selector.reward = chosen.reward if chosen else 0.0
    for one in made:
        one.reward = float(one.reward) * factor
    return made


class Team:
    """The agents of one execution; all are the model that is trained, each with its own prompt."""

    def __init__(self, args: Any, sample: Sample, sampling_params: dict[str, Any]) -> None:
        self._args, self._sample, self._params = args, sample, sampling_params
        self._tokenizer = GenerateState(args).tokenizer

    async def ask_all(self, role: str, form: str, answers: Sequence[str] = ()) -> list[Sample]:
        """The same question to `multi_agent_count` agents, each of which draws its own answer."""
        numbers = range(self._args.multi_agent_count)
        return list(await asyncio.gather(*(self.ask(role, form, answers, number) for number in numbers)))

    async def ask(self, role: str, form: str, answers: Sequence[str] = (), number: int = 0) -> Sample:
        """One call of the model, with the problem and the answers of others in the form."""
        own = deepcopy(self._sample)
        own.metadata["role"], own.rollout_id = role, self._sample.index
        own.prompt = self._prompt(form, answers)
        own.tokens = self._tokenizer(own.prompt, add_special_tokens=False)["input_ids"]
        own.sampling_params = params = dict(self._params)
        if "sampling_seed" in params:
            params["sampling_seed"] += number
        if longest := self._args.rollout_max_context_len:
            params["max_new_tokens"] = max(0, min(params["max_new_tokens"], longest - len(own.tokens)))
        return await ask_model(self._args, own, params)

    def _prompt(self, form: str, answers: Sequence[str]) -> str:
        given = self._sample.prompt
        problem = given if isinstance(given, str) else given[-1]["content"]
        listed = "\n\n".join(f"[{number}] {answer}" for number, answer in enumerate(answers, start=1))
        asked = [{"role": "user", "content": form.format(problem=problem, answers=listed)}]
        text: str = self._tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        return text


def answer_of(sample: Sample) -> str:
    """What was written behind the thoughts, of which there is one end; empty for anything else."""
    parts = sample.response.split(THOUGHT_END)
    return parts[1].strip() if len(parts) == 2 else ""


def answers_of(samples: list[Sample]) -> list[str]:
    return [answer for sample in samples if (answer := answer_of(sample))]


def chosen_of(selector: Sample, candidates: list[Sample]) -> Sample | None:
    """The candidate whose number was written last."""
    numbers = CHOICE.findall(answer_of(selector))
    place = int(numbers[-1]) - 1 if numbers else -1
    return candidates[place] if 0 <= place < len(candidates) else None

"""The samples to ask for at a prompt position, seeds included."""

from __future__ import annotations

import copy

from slime_stages.config import Config
from slime_stages.generation.sampling import mark_for_evaluation, sampling_of
from slime_stages.prompts.order import prompt_at, sample_index, sampling_seed
from slime_stages.prompts.table import PromptTable
from slime_stages.run.plan import Plan
from slime_stages.sample import Sample


def new_group(plan: Plan, config: Config, prompts: PromptTable, position: int) -> list[Sample]:
    """The samples to ask for at one prompt position: a pure function of its arguments."""
    _, row = prompt_at(position, len(prompts), plan.seed, plan.shuffle)
    prompt = prompts.row(row)
    token_ids = [] if prompt.prompt_token_ids is None else [int(token) for token in prompt.prompt_token_ids]
    sampling = sampling_of(config, plan.split)
    group = []
    for number in range(plan.n_samples_per_prompt):
        seed = sampling_seed(plan.seed, plan.iteration, position, number)
        index = sample_index(position, number, plan.n_samples_per_prompt)
        group.append(
            Sample(
                group_index=position,
                index=index,
                prompt=prompt.prompt,
                tokens=list(token_ids),
                label=prompt.label,
                metadata=copy.deepcopy(prompt.metadata),
                prompt_id=prompt.prompt_id,
                multimodal_inputs=prompt.multimodal_inputs(),
                session_id=f"{plan.run_id}-{plan.split}-{plan.iteration}-{index}",
                sampling_params=sampling.params(seed, prompt_length=len(token_ids)),
            )
        )
        if plan.split != "train":
            mark_for_evaluation(group[-1], config, plan.split)
    return group

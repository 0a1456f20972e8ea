"""A rollout function around slime's own, a data source, filters and a log function, as they are written for slime."""

import slime.utils.logging_utils as logging_utils
from slime.ray.rollout import compute_metrics_from_samples, compute_perf_metrics_from_samples
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.rollout.sglang_rollout import GenerateState, eval_rollout, generate_and_rm_group
from slime.rollout.sglang_rollout import generate_rollout as default_generate_rollout
from slime.utils.async_utils import run
from slime.utils.metric_utils import compute_rollout_step, compute_statistics, dict_add_prefix
from slime.utils.types import Sample


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    output = default_generate_rollout(args, rollout_id, data_source, evaluation=False)
    assert isinstance(output, RolloutFnTrainOutput)
    output.metrics["rollout/wrapped"] = 1
    return output


def generate_one_by_one(args, rollout_id, data_source, evaluation=False):
    """Bare lists, from a loop of its own."""

    async def all_groups():
        state = GenerateState(args)
        groups = data_source.get_samples(args.rollout_batch_size)
        return [await generate_and_rm_group(args, group, state.sampling_params.copy()) for group in groups]

    return run(all_groups())


def keep_even(args, samples: list[Sample], **kwargs):
    return DynamicFilterOutput(keep=samples[0].group_index % 2 == 0, reason="odd")


async def reward(args, sample, **kwargs):
    return float(sample.response_length)


class Reversed(RolloutDataSourceWithBuffer):
    """The prompts from the last to the first."""

    def __init__(self, args):
        super().__init__(args)
        self.dataset.samples.reverse()

    def get_samples(self, num_samples):
        groups = super().get_samples(num_samples)
        for group in groups:
            for sample in group:
                sample.metadata = {**sample.metadata, "offset": self.sample_offset}
        return groups


def log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    numbers = compute_statistics([sample.effective_response_length for sample in samples])
    log_dict = {**(rollout_extra_metrics or {}), **dict_add_prefix(numbers, "own/length/")}
    log_dict |= dict_add_prefix(compute_metrics_from_samples(args, samples), "rollout/")
    log_dict |= dict_add_prefix(compute_perf_metrics_from_samples(args, samples, rollout_time), "perf/")
    log_dict["rollout/step"] = compute_rollout_step(args, rollout_id)
    logging_utils.log(args, log_dict, step_key="rollout/step")
    return True

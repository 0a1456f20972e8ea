"""A run folder made with the functions that the stages use: real plans, shards and manifests, responses made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_stages.config import Config
from slime_stages.data.content import content_digest
from slime_stages.data.sample_table import read_samples, write_samples
from slime_stages.data.schema import REWARD, ROLLOUT, TRAIN
from slime_stages.data.shards import ShardWriter
from slime_stages.launch.plans import wanted_version
from slime_stages.lineage import reward_inputs, rollout_inputs, shard_manifest_path, sync_inputs, train_inputs
from slime_stages.run.carry import Stream, write_groups
from slime_stages.run.commit import create_file
from slime_stages.run.plan import Plan, freeze_plan, plan_shards
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.stage import Stage, StageCall, open_stage
from slime_stages.weights.publish import publish_link
from tests.slime_stages.config.settings import resolved

PROMPTS, PER_PROMPT, SHARDS = 4, 2, 2
PROMPT_TOKENS, RESPONSE_TOKENS = [10, 11, 12], [20, 21, 22]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRun:
    """4 prompts an iteration in 2 shards, 2 samples a prompt: indices 0 to 7, then 8 to 15."""

    run: RunDir
    shards: int = SHARDS
    config: Config = field(default_factory=lambda: resolved(rollout_batch_size=4, n_samples_per_prompt=2).config)

    def start(self, model: Path) -> SmallRun:
        publish_link(model, self.run.weights_path(0))
        create_file(self.run.config_revision_path(0), self.config.to_json_bytes())
        self.run.create()
        return self

    def plan(self, iteration: int, split: str = "train") -> Plan:
        shards = plan_shards(iteration * PROMPTS, PROMPTS, self.shards) if split == "train" else plan_shards(0, 2, 1)
        plan = Plan(
            run_id=self.run.run_id(),
            iteration=iteration,
            split=split,
            config_revision=0,
            policy_version=wanted_version(self.config, iteration) if split == "train" else iteration,
            prompts_digest="0",
            n_samples_per_prompt=PER_PROMPT if split == "train" else 1,
            seed=42,
            shuffle=False,
            shards=shards,
            **self._in_turn(iteration, split),
        )
        return freeze_plan(plan, self.run.plan_path(iteration, split))

    def _in_turn(self, iteration: int, split: str) -> dict[str, Any]:
        """Of a stream, each iteration takes what the one before has left over."""
        if split != "train" or not self.config.rollout.rollout_streaming:
            return {}
        return {"carry_from": (iteration - 1,) if iteration else (), "stream_step": 1}

    def rollout(self, plan: Plan, shard: int, *, samples: Sequence[Sample] | None = None, force: bool = False) -> None:
        """Samples whose status is `completed`, but for the last one of each shard, which is `truncated`."""
        rows = list(made_up_samples(plan, shard) if samples is None else samples)
        stage = self._open("rollout", plan, shard, rollout_inputs(self.run, plan, shard), force=force)
        name = f"shard-{shard:05d}-of-{plan.shard_count:05d}.parquet"
        temporary = stage.temporary(name)
        write_samples(temporary, rows, iteration=plan.iteration, shard=shard, split=plan.split)
        issued = plan.shards[shard].stop - plan.shards[shard].start
        stage.commit(
            data=temporary,
            name=name,
            rows=len(rows),
            tokens=sum(len(sample.tokens) for sample in rows),
            content=content_digest(temporary, ROLLOUT),
            counts={"issued": issued, "kept": issued, "dropped": 0, "carried": 0, **by_status(rows)},
            outputs={} if plan.carry_from is None else {"carry": self._nothing_left(plan, shard)},
        )

    def _nothing_left(self, plan: Plan, shard: int) -> dict[str, Any]:
        """An empty hand-over, behind the prompts of the plan."""
        path = self.run.shard_path("carry", plan.iteration, shard, plan.shard_count)
        path.parent.mkdir(parents=True, exist_ok=True)
        stream, size = Stream.of(plan, shard, base=0), plan.shards[shard].stop - plan.shards[shard].start
        return write_groups(path, [], plan=plan, shard=shard, stream=stream, following=size * (plan.iteration + 1))

    def reward(
        self, plan: Plan, shard: int, *, rewards: Sequence[float | None] | None = None, stage_name: str = "reward"
    ) -> None:
        """Rewards 0, 1, 0, 1 … over the shard; None is an error of the reward function."""
        samples = read_samples(self.run.shard_path("rollout", plan.iteration, shard, plan.shard_count, plan.split))
        values = list(rewards or [float(row % 2) for row in range(len(samples))])
        stage = self._open(stage_name, plan, shard, reward_inputs(self.run, plan, shard))
        name = f"shard-{shard:05d}-of-{plan.shard_count:05d}.parquet"
        temporary = stage.temporary(name)
        statuses = ["error" if value is None else "scored" for value in values]
        with ShardWriter(temporary, REWARD) as writer:
            writer.write(
                {
                    "iteration": [plan.iteration] * len(values),
                    "shard": [shard] * len(values),
                    "split": [plan.split] * len(values),
                    "row": list(range(len(values))),
                    "index": [sample.index for sample in samples],
                    "group_index": [sample.group_index for sample in samples],
                    "reward": values,
                    "reward_parts": [None if value is None else f'{{"right":{value}}}' for value in values],
                    "reward_status": statuses,
                    "reward_message": ["no number found" if value is None else None for value in values],
                    "reward_seconds": [0.25] * len(values),
                    "trace": [None] * len(values),
                }
            )
        given = [value for value in values if value is not None]
        stage.commit(
            data=temporary,
            name=name,
            rows=len(values),
            content=content_digest(temporary, REWARD),
            counts=dict(Counter(statuses)),
            metrics={"rollout/raw_reward": sum(given) / len(given) if given else None},
        )

    def train(self, plan: Plan, *, drop_reasons: Sequence[str | None] = ()) -> None:
        """Every sample is used, but for those that `drop_reasons` has a reason for, in the order of shards and rows."""
        stage = self._open("train", plan, None, train_inputs(self.run, plan))
        per_shard = [len(made_up_samples(plan, shard)) for shard in range(plan.shard_count)]
        places = [(shard, row) for shard, rows in enumerate(per_shard) for row in range(rows)]
        reasons = [*drop_reasons, *([None] * len(places))][: len(places)]
        temporary = stage.temporary("samples.parquet")
        with ShardWriter(temporary, TRAIN) as writer:
            count = len(places)
            first = plan.iteration * PROMPTS * PER_PROMPT
            writer.write(
                {
                    "iteration": [plan.iteration] * count,
                    "shard": [shard for shard, _ in places],
                    "row": [row for _, row in places],
                    "index": [first + number for number in range(count)],
                    "group_index": [(first + number) // PER_PROMPT for number in range(count)],
                    "rollout_id": [first + number for number in range(count)],
                    "used": [reason is None for reason in reasons],
                    "drop_reason": reasons,
                    "step": [0 if reason is None else None for reason in reasons],
                    "raw_reward": [float(row % 2) for _, row in places],
                    "advantage": [
                        row % 2 - 0.5 if why is None else None for (_, row), why in zip(places, reasons, strict=True)
                    ],
                    "log_prob_gap": [0.001] * count,
                    "entropy": [1.5] * count,
                    "clip_share": [0.0] * count,
                    "trained_tokens": [2] * count,
                    "backward": [True] * count,
                }
            )
        stage.commit(
            data=temporary,
            name="samples.parquet",
            rows=count,
            content=f"trained {plan.iteration}",
            metrics={"train/probs_diff": 0.0005, "train/grad_norm": 1.25, "train/steps": 1.0},
        )

    def sync(self, plan: Plan) -> None:
        self._open("sync", plan, None, sync_inputs(self.run, plan)).commit(content=f"weights {plan.iteration + 1}")

    def complete(self, iteration: int) -> Plan:
        """A whole iteration."""
        plan = self.plan(iteration)
        for shard in range(plan.shard_count):
            self.rollout(plan, shard)
            self.reward(plan, shard)
        self.train(plan)
        self.sync(plan)
        return plan

    def evaluate(self, version: int, split: str) -> None:
        plan = self.plan(version, split)
        self.rollout(plan, 0)
        self.reward(plan, 0)

    def _open(self, name: str, plan: Plan, shard: int | None, inputs: dict[str, str], *, force: bool = False) -> Stage:
        call = StageCall(
            stage=name, run=self.run.root, iteration=plan.iteration, shard=shard, split=plan.split, force=force
        )
        path = shard_manifest_path(self.run, plan, name, shard)
        stage = open_stage(call, inputs, plan=plan, config=self.config, path=path)
        assert stage is not None
        return stage


def made_up_samples(plan: Plan, shard: int, *, word: str = "answer") -> list[Sample]:
    """3 prompt tokens and 3 response tokens each; the second response token is a tool's."""
    positions = range(plan.shards[shard].start, plan.shards[shard].stop)
    samples = [
        Sample(
            index=position * plan.n_samples_per_prompt + number,
            group_index=position,
            prompt_id=f"prompt-{position}",
            prompt=f"question {position}",
            tokens=[*PROMPT_TOKENS, *RESPONSE_TOKENS],
            response_length=len(RESPONSE_TOKENS),
            response=f"{word} {position}.{number}",
            label=str(position),
            loss_mask=[1, 0, 1],
            rollout_log_probs=[-0.05, 0.0, -5.0],
            status=Status.COMPLETED,
            weight_versions=[str(plan.policy_version)],
            sampling_params={"sampling_seed": 7},
            generate_seconds=1.5,
        )
        for position in positions
        for number in range(plan.n_samples_per_prompt)
    ]
    samples[-1].status = Status.TRUNCATED
    return samples


def by_status(samples: Sequence[Sample]) -> dict[str, int]:
    return dict(Counter(Status(sample.status).value for sample in samples))


def make_model_folder(folder: Path) -> Path:
    """Files with the names of a model's; nothing here reads what is in them."""
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder

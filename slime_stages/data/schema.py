"""Every column of every table that a run holds: its type and its meaning, in one place.

`docs/columns.md` is generated from here. No column exists elsewhere, and none is inferred from data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

import pyarrow as pa

ENUM = pa.dictionary(pa.int8(), pa.string())
TOKENS = pa.list_(pa.field("element", pa.int32(), nullable=False))
MASK = pa.list_(pa.field("element", pa.uint8(), nullable=False))
LOG_PROBS = pa.list_(pa.field("element", pa.float32(), nullable=False))
STRINGS = pa.list_(pa.field("element", pa.string(), nullable=False))
PAYLOADS = pa.list_(pa.field("element", pa.binary(), nullable=False))


class Text(Enum):
    """What a string column holds, where it is not for people."""

    JSON = "json"


JSON: Literal[Text.JSON] = Text.JSON


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a shard."""

    name: str
    type: pa.DataType
    meaning: str
    nullable: bool = False
    is_json: bool = False
    """A string that holds JSON."""
    volatile: bool = False
    """Differs between two attempts at the same work (clocks, caches), so it is left out of the content digest."""


def column(name: str, type_: pa.DataType | Literal[Text.JSON], meaning: str) -> Column:
    """A column that has a value in every row."""
    return Column(name, pa.string() if type_ is JSON else type_, meaning, is_json=type_ is JSON)


def optional(name: str, type_: pa.DataType | Literal[Text.JSON], meaning: str) -> Column:
    """A column where null means: not given. An empty list is something else."""
    return replace(column(name, type_, meaning), nullable=True)


def volatile(declared: Column) -> Column:
    """The same column, left out of the content digest."""
    return replace(declared, volatile=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSchema:
    """The columns of one kind of table, and the version that its files carry."""

    kind: str
    """Also in the file's metadata; a reader refuses another kind."""
    version: int
    purpose: str
    """One sentence for the reference page."""
    columns: tuple[Column, ...]
    parallel: dict[str, tuple[str, int]] = field(default_factory=dict)
    """List column → (column that holds its length, plus so many): checked for every row, on write and on read."""
    at_most: dict[str, str] = field(default_factory=dict)
    """Count column → column that it cannot exceed: checked likewise."""

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]


ROLLOUT = ShardSchema(
    kind="rollout",
    version=1,
    purpose="One row a sample, as the rollout stage wrote it: what the engine sampled, and from what.",
    columns=(
        column("iteration", pa.int32(), "iteration the sample belongs to"),
        column("shard", pa.int32(), "shard within the iteration"),
        column("split", ENUM, "`train`, or the name of the evaluation set"),
        column("row", pa.int32(), "row within the shard; (iteration, split, shard, row) is the sample's identity"),
        optional("index", pa.int64(), "counts samples over the run: prompt position × samples per prompt + number"),
        optional("group_index", pa.int64(), "counts prompts over the run; advantages are centred within a group"),
        optional("rollout_id", pa.int64(), "execution that made it; fan-out siblings share it; null: its own"),
        optional("session_id", pa.string(), "routing key: requests of a session go to one engine"),
        optional("prompt_id", pa.string(), "content hash of the row in the prompt table"),
        column("tokens", TOKENS, "[P+R] prompt ids followed by response ids, as sampled"),
        column("total_length", pa.int32(), "P+R"),
        column("response_length", pa.int32(), "R, tool and observation tokens included"),
        optional("loss_mask", MASK, "[R] 1 on tokens that the model wrote; null: all of them"),
        optional("rollout_log_probs", LOG_PROBS, "[R] natural log under the sampler, 0.0 where the mask is 0"),
        optional("teacher_log_probs", LOG_PROBS, "[R] natural log under the distillation teacher"),
        column("status", ENUM, "pending, completed, truncated, aborted or failed"),
        optional("reward", pa.float64(), "reward filled in by the generate function, when it is a number"),
        optional("reward_parts", JSON, "the same, when it is a dict"),
        column("remove_sample", pa.bool_(), "train on none of its tokens; it still counts in denominators"),
        column("weight_versions", STRINGS, "weight version told by each engine call, in order"),
        optional("prompt", pa.string(), "the prompt as text"),
        optional("messages", JSON, "the prompt as chat messages, where no chat template was applied"),
        column("response", pa.string(), "the response as text, for people and rewards; never tokenised again"),
        optional("label", JSON, "ground truth for the reward"),
        column("metadata", JSON, "free-form dict of the prompt's row and of plug-ins"),
        optional("train_metadata", JSON, "dict handed to the loss"),
        column("apply_chat_template_kwargs", JSON, "arguments of the chat template"),
        optional("generate_function_path", pa.string(), "generate function of this sample"),
        optional("custom_rm_path", pa.string(), "reward function of this sample"),
        optional("sampling_params", JSON, "what the engine was asked for"),
        optional("sampling_seed", pa.int64(), "seed of the sampler for this sample"),
        volatile(optional("generate_seconds", pa.float64(), "wall clock from the first request to the last token")),
        volatile(column("non_generation_time", pa.float64(), "seconds in tools and environments")),
        volatile(column("spec_info", JSON, "speculative decoding counters")),
        volatile(column("prefix_cache_info", JSON, "prefix cache counters")),
        volatile(optional("trace", JSON, "spans of generation and tools, see `slime-stages trace`; null: not traced")),
        optional("rollout_top_p_token_ids", TOKENS, "ids of the sampler's nuclei, one after the other"),
        optional("rollout_top_p_token_offsets", TOKENS, "[R+1] token i has ids[offsets[i]:offsets[i+1]]"),
        optional("rollout_routed_experts", TOKENS, "[(P+R-1)·L·K] router choices, flat"),
        optional("rollout_routed_experts_shape", TOKENS, "[3] P+R-1, layers L, experts per token K"),
        optional("multimodal_inputs", JSON, 'raw media; `{"$payload": i}` points into `payloads`'),
        optional("multimodal_train_inputs", JSON, "the processor's output; points into `payloads`"),
        optional("multimodal_train_input_id", pa.string(), "name of shared media"),
        column("extra", JSON, "attributes that are no field of `Sample`; may point into `payloads`"),
        optional("payloads", PAYLOADS, "PNG images, npy arrays and raw bytes that JSON cannot hold"),
    ),
    parallel={
        "tokens": ("total_length", 0),
        "loss_mask": ("response_length", 0),
        "rollout_log_probs": ("response_length", 0),
        "teacher_log_probs": ("response_length", 0),
        "rollout_top_p_token_offsets": ("response_length", 1),
    },
    at_most={"response_length": "total_length"},
)

REWARD = ShardSchema(
    kind="reward",
    version=1,
    purpose="One row for each row of the rollout shard of the same name, in its order.",
    columns=(
        column("iteration", pa.int32(), "as in the rollout shard"),
        column("shard", pa.int32(), "as in the rollout shard"),
        column("split", ENUM, "as in the rollout shard"),
        column("row", pa.int32(), "row of the rollout shard"),
        optional("index", pa.int64(), "as in the rollout shard"),
        optional("group_index", pa.int64(), "as in the rollout shard"),
        optional("reward", pa.float64(), "the number to train on; null where there is none, never 0 in its place"),
        optional("reward_parts", JSON, "the dict that the reward function returned"),
        column("reward_status", ENUM, "scored, given (by the generate function), skipped, timeout, oom or error"),
        volatile(optional("reward_message", pa.string(), "why there is no reward")),
        volatile(column("reward_seconds", pa.float64(), "wall clock in the reward function")),
        volatile(optional("trace", JSON, "spans of scoring, a list of events; null: not traced")),
    ),
)

TRAIN = ShardSchema(
    kind="train",
    version=1,
    purpose="One row for each sample of the iteration: what became of it in training.",
    columns=(
        column("iteration", pa.int32(), "iteration trained on"),
        column("shard", pa.int32(), "shard of the rollout row"),
        column("row", pa.int32(), "row of the rollout shard"),
        optional("index", pa.int64(), "as in the rollout shard"),
        optional("group_index", pa.int64(), "as in the rollout shard"),
        column("rollout_id", pa.int64(), "execution, filled in where the sample had none"),
        column("used", pa.bool_(), "it was part of an optimizer step"),
        optional("drop_reason", ENUM, "why it was not"),
        optional("step", pa.int32(), "optimizer step within the iteration"),
        optional("raw_reward", pa.float64(), "reward as scored"),
        optional("advantage", pa.float64(), "reward centred, and scaled, within its group"),
        optional("log_prob_gap", pa.float64(), "mean over trained tokens of |log p train - log p rollout|"),
        optional("entropy", pa.float64(), "mean entropy of the policy over its trained tokens, in nats"),
        optional("clip_share", pa.float64(), "share of its trained tokens whose ratio was clipped"),
        column("trained_tokens", pa.int32(), "tokens with mask 1"),
        column("backward", pa.bool_(), "it went through the backward pass; others had no loss term but zero"),
    ),
)

PROMPTS = ShardSchema(
    kind="prompts",
    version=1,
    purpose="The prompts of the run, one row each, in the order of their files.",
    columns=(
        column("prompt_id", pa.string(), "content hash of the source row"),
        optional("prompt", pa.string(), "the prompt as text, chat template applied where asked for"),
        optional("messages", JSON, "the prompt as chat messages, where no template was applied"),
        optional("prompt_token_ids", TOKENS, "the prompt's ids, for text prompts"),
        optional("label", JSON, "ground truth for the reward"),
        column("metadata", JSON, "free-form dict"),
        column("source", pa.string(), "file it came from"),
    ),
)

MEDIA_PROMPTS = replace(
    PROMPTS,
    kind="prompts_with_media",
    purpose="The prompts of a run with `multimodal_keys`, in the place of the above.",
    columns=(
        *PROMPTS.columns,
        optional("media", PAYLOADS, "images as their files are, in the order of their places in the prompt"),
    ),
)

SCHEMAS = (PROMPTS, MEDIA_PROMPTS, ROLLOUT, REWARD, TRAIN)

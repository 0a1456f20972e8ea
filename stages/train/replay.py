"""What the engine decided on the way to each sample, to be decided alike in training: which experts its tokens went to
(spec §E.10), and which tokens each one was drawn from (spec §E.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.data.shards import list_rows
from slime_stages.errors import DataError
from stages.train.megatron.packing import Nuclei

EXPERTS = "routed_experts"
"""Column of flat rows [(L - 1) * layers * experts per token], of a sample as a whole and not of its response tokens."""
NUCLEUS_COLUMNS = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets")
EXPERT_COLUMNS = ("rollout_routed_experts", "rollout_routed_experts_shape")


def replay_columns(config: Config) -> tuple[str, ...]:
    """Columns of the rollout shards that are read for it."""
    is_cut = config.rollout.rollout_top_p != 1.0 and config.algorithm.loss_type != "sft_loss"
    experts = EXPERT_COLUMNS if config.train.use_rollout_routing_replay else ()
    return (*(NUCLEUS_COLUMNS if is_cut else ()), *experts)


def nuclei_of(table: pa.Table, config: Config) -> list[Nuclei]:
    """Of each row; a sample without a record was drawn from all tokens. None at all if they are not asked for."""
    if not set(NUCLEUS_COLUMNS) <= set(replay_columns(config)):
        return []
    ids, offsets = (list_rows(table[name]) for name in NUCLEUS_COLUMNS)
    lengths = table["response_length"].to_pylist()
    return [
        Nuclei(ids=np.zeros(0, np.int64), offsets=np.zeros(length + 1, np.int64))
        if of_sample is None or bounds is None
        else Nuclei(ids=of_sample.astype(np.int64), offsets=bounds.astype(np.int64))
        for of_sample, bounds, length in zip(ids, offsets, lengths, strict=True)
    ]


def engine_experts(
    table: pa.Table, config: Config, indices: NDArray[np.int64], positions: Sequence[int]
) -> dict[int, NDArray[np.float32]]:
    """`EXPERTS` by position, of the rows with a response; none at all if they are not asked for."""
    if not config.train.use_rollout_routing_replay:
        return {}
    found = {}
    rows, shapes = list_rows(table[EXPERT_COLUMNS[0]]), table[EXPERT_COLUMNS[1]].to_pylist()
    lengths = zip(table["total_length"].to_pylist(), table["response_length"].to_pylist(), strict=True)
    for number, (total, response) in enumerate(lengths):
        if not response:
            continue
        row, shape = rows[number], shapes[number]
        if row is None or shape is None or shape[0] != total - 1:
            has = "none" if shape is None else f"those of {shape[0]}"
            raise DataError(
                f"sample {indices[number]} has {total} tokens, and {has} of its tokens' experts",
                hint="engines give them only if --use-rollout-routing-replay was on: generate anew, or drop it",
            )
        found[positions[number]] = row.astype(np.float32)
    return found

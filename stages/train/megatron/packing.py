"""Pack samples into one row of tokens without padding, where samples of a group share their common prompt.

A group's part of the row is its prompt P followed by the responses R1..Rk. Every response token sees the
prompt and its own response up to itself; positions of each response go on where the prompt ends. A response's
last token predicts nothing and is left out. Plain numpy: nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

DEFAULT_SHARE_LIMIT = 2048
MAXIMUM_PADDING = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Nuclei:
    """The tokens that each of N tokens was drawn from."""

    ids: IntArray
    """Of all of them, one after the other."""

    offsets: IntArray
    """[N + 1] token i was drawn from `ids[offsets[i]:offsets[i + 1]]`, from all tokens if that is empty."""

    def of(self, chosen: IntArray) -> Nuclei:
        """Those of some of the tokens."""
        spans = [self.ids[self.offsets[token] : self.offsets[token + 1]] for token in chosen.tolist()]
        return Nuclei(ids=_concatenate(spans), offsets=np.cumsum([0, *map(len, spans)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSample:
    """One sample as the packer takes it."""

    tokens: IntArray
    """[P + R] prompt, then response."""

    response_length: int
    """R."""

    share_key: Hashable = None
    """Samples with equal keys and equal prompts share the prompt; None shares with nobody."""

    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """[R] each: what the loss needs beside every response token; all samples of a row have the same names."""

    routed_experts: IntArray | None = None
    """[P + R - 1, layers * K] the K experts of each layer that each token goes to; of all samples of a row or none."""

    nuclei: Nuclei | None = None
    """[R] what each response token was drawn from, if not from the whole vocabulary; of all samples or of none."""

    def __post_init__(self) -> None:
        assert 0 <= self.response_length < len(self.tokens), (self.response_length, len(self.tokens))
        assert all(len(column) == self.response_length for column in self.columns.values()), self.columns

    @property
    def prompt_length(self) -> int:
        return len(self.tokens) - self.response_length


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Share groups of similar length whose attention is computed together. G groups, L tokens of the longest."""

    rows: IntArray
    """[G, L] row numbers; short groups are padded with their own first row."""

    lengths: IntArray
    """[G] tokens of each group."""

    visible: BoolArray | None
    """[G, L, L] query sees key; None where plain causal attention says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMicroBatch:
    """One row of T tokens with N response tokens, in the order of the samples given to `pack_samples`."""

    tokens: IntArray
    """[T]"""

    positions: IntArray
    """[T] position of each token in its own sample."""

    attention: tuple[AttentionBatch, ...]
    """Together they hold every row exactly once, padding aside."""

    logit_rows: IntArray
    """[N] the row whose logits predict each response token."""

    targets: IntArray
    """[N] the response tokens."""

    sample_index: IntArray
    """[N] which sample each response token belongs to; never decreasing."""

    columns: Mapping[str, NDArray[Any]]
    """[N] each: the samples' columns, one after the other."""

    sample_rows: tuple[IntArray, ...]
    """[S] the rows of each sample's tokens but the last, [P + R - 1]; none of a sample without a response."""

    routed_experts: IntArray | None = None
    """[T, layers * K]"""

    nuclei: Nuclei | None = None
    """[N]"""


class PackedLater(Sequence[PackedMicroBatch]):
    """Micro-batches that are packed each time that they are asked for: which token sees which takes much memory."""

    def __init__(self, samples: Sequence[Sequence[PackedSample]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, number: int) -> PackedMicroBatch: ...

    @overload
    def __getitem__(self, number: slice) -> PackedLater: ...

    def __getitem__(self, number: int | slice) -> PackedMicroBatch | PackedLater:
        if isinstance(number, slice):
            return PackedLater(self._samples[number])
        return pack_samples(self._samples[number])

    @property
    def target_counts(self) -> list[int]:
        """N of each, without packing them."""
        return [sum(sample.response_length for sample in samples) for samples in self._samples]


def target_counts(micro_batches: Sequence[PackedMicroBatch]) -> list[int]:
    """N of each."""
    if isinstance(micro_batches, PackedLater):
        return micro_batches.target_counts
    return [len(each.targets) for each in micro_batches]


@dataclass(slots=True)
class _Group:
    """One prompt and the samples that go on from it."""

    prompt: IntArray
    members: list[int]
    length: int


def pack_samples(samples: Sequence[PackedSample], *, share_limit: int = DEFAULT_SHARE_LIMIT) -> PackedMicroBatch:
    """Lay samples out in one row; a group longer than `share_limit` tokens is split and repeats its prompt.

    Attention within a group costs the square of its length, so the limit bounds what sharing can waste.
    """
    groups = _form_groups(samples, share_limit)
    tokens: list[IntArray] = []
    positions: list[IntArray] = []
    sample_rows: list[IntArray] = [np.empty(0, np.int64)] * len(samples)
    start = 0
    for group in groups:
        prompt_length = len(group.prompt)
        tokens.append(group.prompt)
        positions.append(np.arange(prompt_length))
        end = start + prompt_length
        for member in group.members:
            response_inputs = samples[member].tokens[prompt_length:-1]
            tokens.append(response_inputs)
            positions.append(np.arange(prompt_length, prompt_length + len(response_inputs)))
            rows = np.arange(end, end + len(response_inputs))
            sample_rows[member] = np.concatenate([np.arange(start, start + prompt_length), rows])
            end += len(response_inputs)
        start = end
    lengths = [sample.response_length for sample in samples]
    return PackedMicroBatch(
        tokens=_concatenate(tokens),
        positions=_concatenate(positions),
        attention=_attention_batches(groups, samples),
        logit_rows=_concatenate(
            rows[sample.prompt_length - 1 :] for rows, sample in zip(sample_rows, samples, strict=True)
        ),
        targets=_concatenate(s.tokens[s.prompt_length :] for s in samples),
        sample_index=np.repeat(np.arange(len(samples)), lengths),
        columns={name: np.concatenate([s.columns[name] for s in samples]) for name in samples[0].columns},
        sample_rows=tuple(sample_rows),
        routed_experts=_routed_experts(samples, sample_rows),
        nuclei=_nuclei([sample.nuclei for sample in samples]),
    )


def _routed_experts(samples: Sequence[PackedSample], sample_rows: Sequence[IntArray]) -> IntArray | None:
    first = next((sample.routed_experts for sample in samples if sample.routed_experts is not None), None)
    if first is None:
        return None
    count = 1 + max((int(rows.max()) for rows in sample_rows if len(rows)), default=-1)
    whole = np.zeros((count, *first.shape[1:]), np.int64)
    for sample, rows in zip(samples, sample_rows, strict=True):
        if len(rows):
            assert sample.routed_experts is not None
            whole[rows] = sample.routed_experts
    return whole


def _nuclei(parts: Sequence[Nuclei | None]) -> Nuclei | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    assert len(known) == len(parts), "of all samples or of none"
    lengths = _concatenate(np.diff(part.offsets) for part in known)
    return Nuclei(ids=_concatenate(part.ids for part in known), offsets=np.append(0, np.cumsum(lengths)))


def _form_groups(samples: Sequence[PackedSample], share_limit: int) -> list[_Group]:
    """Samples without a response take no part; groups stand in the order of their first sample."""
    groups: list[_Group] = []
    open_groups: dict[Hashable, _Group] = {}
    for index, sample in enumerate(samples):
        if sample.response_length == 0:
            continue
        prompt = np.asarray(sample.tokens[: sample.prompt_length], dtype=np.int64)
        key = index if sample.share_key is None else (sample.share_key, prompt.tobytes(), _prompt_routing(sample))
        added = sample.response_length - 1
        group = open_groups.get(key)
        if group is None or group.length + added > share_limit:
            group = _Group(prompt=prompt, members=[], length=len(prompt))
            open_groups[key] = group
            groups.append(group)
        group.members.append(index)
        group.length += added
    return groups


def _prompt_routing(sample: PackedSample) -> bytes | None:
    """Prompts are shared if their tokens went to the same experts, which is not so where an engine noted them."""
    experts = sample.routed_experts
    return None if experts is None else experts[: sample.prompt_length].tobytes()


def _attention_batches(groups: Sequence[_Group], samples: Sequence[PackedSample]) -> tuple[AttentionBatch, ...]:
    starts = np.cumsum([0, *(group.length for group in groups)])
    shared = [index for index, group in enumerate(groups) if len(group.members) > 1]
    alone = [index for index, group in enumerate(groups) if len(group.members) == 1]
    batches = []
    for indices, masked in ((shared, True), (alone, False)):
        for bucket in _buckets(indices, [group.length for group in groups]):
            lengths = np.array([groups[index].length for index in bucket])
            columns = np.arange(lengths.max())
            rows = starts[bucket][:, None] + np.where(columns < lengths[:, None], columns, 0)
            segments = [_segments(groups[index], samples, len(columns)) for index in bucket] if masked else []
            visible = _visible(np.stack(segments)) if masked else None
            batches.append(AttentionBatch(rows=rows, lengths=lengths, visible=visible))
    return tuple(batches)


def _buckets(indices: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Split into runs of similar length, so that padding stays below `MAXIMUM_PADDING`."""
    buckets: list[list[int]] = []
    for index in sorted(indices, key=lambda each: -lengths[each]):
        if buckets and lengths[index] >= (1 - MAXIMUM_PADDING) * lengths[buckets[-1][0]]:
            buckets[-1].append(index)
        else:
            buckets.append([index])
    return [sorted(bucket) for bucket in buckets]


def _segments(group: _Group, samples: Sequence[PackedSample], width: int) -> IntArray:
    """[L] 0 on the prompt, 1..k on the responses, -1 on padding."""
    sizes = [len(group.prompt), *(samples[member].response_length - 1 for member in group.members)]
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    return np.pad(numbers, (0, width - len(numbers)), constant_values=-1)


def _visible(segments: IntArray) -> BoolArray:
    """[G, L, L] the key comes no later, and lies in the prompt or in the query's own response."""
    same = segments[:, :, None] == segments[:, None, :]
    in_prompt = segments[:, None, :] == 0
    not_later = np.tri(segments.shape[1], dtype=bool)
    visible: BoolArray = (same | in_prompt) & not_later
    return visible


def _concatenate(parts: Iterable[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, copy=False)

"""Whatever samples hold comes back from a shard."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slime_stages.sample import Sample, Status
from tests.slime_stages.round_trip import assert_same, stored

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
float32 = st.floats(width=32, allow_nan=False)
dicts = st.dictionaries(st.text(), json_values, max_size=3)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=6))
    length = draw(st.integers(0, len(tokens)))

    def parallel(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(values, min_size=length, max_size=length))

    sample = Sample(
        index=draw(st.none() | st.integers(0, 2**62)),
        tokens=tokens,
        response_length=length,
        loss_mask=parallel(st.integers(0, 1)),
        rollout_log_probs=parallel(float32),
        teacher_log_probs=parallel(float32),
        status=draw(st.sampled_from(Status)),
        reward=draw(st.none() | st.floats(allow_nan=False) | dicts),
        prompt=draw(st.text() | st.lists(dicts, max_size=2)),
        response=draw(st.text()),
        label=draw(json_values),
        metadata=draw(dicts),
        train_metadata=draw(st.none() | dicts),
        weight_versions=draw(st.lists(st.text(), max_size=2)),
        session_id=draw(st.none() | st.text()),
        multimodal_inputs=draw(st.none() | dicts),
        trace=draw(st.none() | dicts),
    )
    vars(sample).update(draw(st.dictionaries(st.sampled_from(["origin", "source"]), json_values | st.binary())))
    return sample


@settings(max_examples=25, deadline=None)
@given(batch=st.lists(samples(), min_size=1, max_size=5))
def test_whatever_the_samples_hold_a_shard_gives_them_back(batch: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = stored(Path(folder), *batch)

    for back, sample in zip(found, batch, strict=True):
        assert_same(back, sample)

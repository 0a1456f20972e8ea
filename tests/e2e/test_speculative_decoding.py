"""Runs whose engines draft, by the command line and with the flags of a user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from tests.e2e.runs import SETTINGS
from tests.e2e.test_algorithms import metric
from tests.e2e.test_pipeline import shell
from tests.e2e.test_prediction import make_tiny_mimo
from tests.fixtures.tiny_model import make_tiny_model

pytestmark = pytest.mark.slow
ITERATIONS = 2
NGRAM = "--sglang-speculative-algorithm NGRAM --sglang-speculative-num-draft-tokens 4"
NEXTN = (
    "--sglang-speculative-algorithm NEXTN --sglang-speculative-num-steps 3 --sglang-speculative-eagle-topk 1 "
    "--sglang-speculative-num-draft-tokens 4 --sglang-speculative-draft-model-path {model} "
    "--mtp-num-layers 1 --enable-mtp-training"
)
"""As a script for slime has it: the checkpoint is given as the draft model."""


@pytest.mark.parametrize(
    ("make_model", "flags"), [(make_tiny_model, NGRAM), (make_tiny_mimo, NEXTN)], ids=["ngram", "own layers"]
)
def test_a_policy_is_trained_on_samples_that_were_drafted(
    tiny_prompts: Path, tmp_path: Path, make_model: Callable[[Path], Path], flags: str
) -> None:
    model, run = make_model(tmp_path / "model"), RunDir(tmp_path / "run")
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(model=model, prompts=tiny_prompts))
    more = "--rollout-shards 1 --rollout-max-response-len 40 " + flags.format(model=model)

    done = shell(
        f"slime-stages init --run {run.root} --config {settings} {more}"
        f" && slime-stages iter --run {run.root} --n {ITERATIONS}"
    )

    assert done.returncode == 0, done.stderr
    assert max(metric(run, "train/probs_diff")) < 1e-4
    for iteration in range(ITERATIONS):
        path = run.manifest_path("rollout", iteration, 0, 1)
        infos = [sample.spec_info for sample in read_samples(path.with_suffix(".parquet"))]
        accepted, verified = sum(info.spec_accept_token_num for info in infos), sum(i.spec_verify_ct for i in infos)
        assert all(info.spec_draft_token_num == 3 * info.spec_verify_ct > 0 for info in infos)
        assert read_manifest(path).metrics["rollout/spec_accept_rate"] == accepted / (3 * verified)

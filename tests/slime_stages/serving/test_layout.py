from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.serving.layout import Layout, layout_of
from tests.slime_stages.serving.settings import CHECKPOINT, config_of, layout

PREFILL_AND_DECODE = """
sglang:
  - name: actor
    num_gpus_per_engine: 2
    server_groups:
      - {worker_type: prefill, num_gpus: 2}
      - {worker_type: placeholder, num_gpus: 1}
      - {worker_type: decode, num_gpus: 4}
  - name: judge
    model_path: /models/judge
    server_groups: [{worker_type: regular, num_gpus: 1}]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engines.yaml"


def engines(found: Layout) -> list[tuple[str, str, tuple[str, ...]]]:
    """(model, worker type, GPUs) of every engine."""
    return [
        (model.name, group.worker_type, found.devices_of(group, number))
        for model in found.models
        for group in model.groups
        for number in range(len(group.first_gpus))
    ]


def test_a_machine_without_a_gpu_has_one_engine_or_as_many_as_asked_for() -> None:
    assert engines(layout()) == [("actor", "regular", ())]
    assert len(engines(layout("--rollout-num-engines", "3"))) == 3
    assert len(engines(layout("--rollout-num-gpus", "4", "--rollout-num-gpus-per-engine", "2"))) == 2


def test_the_gpus_of_a_job_are_shared_out() -> None:
    found = layout("--rollout-num-gpus-per-engine", "2", gpus=5)

    assert engines(found) == [("actor", "regular", ("0", "1")), ("actor", "regular", ("2", "3"))]
    assert found.warnings == ("1 of 5 GPUs of actor are left idle: engines have 2",)
    assert found.models[0].needs_router


def test_fewer_gpus_than_wanted_are_refused() -> None:
    with pytest.raises(UsageError, match=r"rollout_num_gpus wants 4 GPUs for engines; this job sees 2 \(0, 1\)"):
        layout("--rollout-num-gpus", "4", gpus=2)


def test_prefill_servers_take_their_gpus_from_those_that_decode() -> None:
    found = layout("--prefill-num-servers", "1", "--rollout-num-gpus-per-engine", "2", gpus=6)

    assert [kind for _, kind, _ in engines(found)] == ["prefill", "decode", "decode"]
    assert found.models[0].is_disaggregated
    assert found.models[0].engine_count == 2
    with pytest.raises(UsageError, match="takes 2 of 2 GPUs and leaves none to decode"):
        layout("--prefill-num-servers", "2", "--rollout-num-gpus", "2")


def test_experts_of_a_prompt_are_not_taken_from_an_engine_that_only_decodes() -> None:
    replay = "--use-rollout-routing-replay"

    with pytest.raises(UsageError, match="tell experts of prompts that they never computed"):
        layout("--prefill-num-servers", "1", "--rollout-num-gpus", "2", replay)
    assert layout("--rollout-num-gpus", "2", replay).models[0].engine_count == 2


def test_a_file_lays_engines_out_around_its_placeholders(path: Path) -> None:
    path.write_text(PREFILL_AND_DECODE)

    found = layout("--sglang-config", str(path), gpus=8)

    assert engines(found) == [
        ("actor", "prefill", ("0", "1")),
        ("actor", "decode", ("3", "4")),
        ("actor", "decode", ("5", "6")),
        ("judge", "regular", ("7",)),
    ]
    assert [model.model_path for model in found.models] == [None, "/models/judge"]
    assert [model.needs_router for model in found.models] == [True, False]
    assert found.warnings == ("judge serves /models/judge as it is: its weights are not those that are trained",)


def test_the_groups_of_a_file_have_just_the_gpus_asked_for(path: Path) -> None:
    path.write_text(PREFILL_AND_DECODE)

    with pytest.raises(UsageError, match="have 8 GPUs together; rollout_num_gpus is 6"):
        layout("--sglang-config", str(path), "--rollout-num-gpus", "6")


@pytest.mark.parametrize(
    ("entry", "own_path"),
    [
        ("", None),
        (f"model_path: {CHECKPOINT}, ", None),
        (f"model_path: {CHECKPOINT}, update_weights: false, ", CHECKPOINT),
        ("model_path: /models/other, ", "/models/other"),
        ("model_path: /models/other, update_weights: true, ", None),
        ("update_weights: false, ", CHECKPOINT),
    ],
)
def test_a_model_is_trained_if_it_says_so_or_is_the_checkpoint(path: Path, entry: str, own_path: str | None) -> None:
    path.write_text(f"sglang:\n  - {{name: a, {entry}server_groups: [{{worker_type: regular, num_gpus: 1}}]}}\n")

    assert layout("--sglang-config", str(path)).models[0].model_path == own_path


def test_overrides_are_spelled_with_underscores(path: Path) -> None:
    path.write_text(
        "sglang:\n  - name: a\n    server_groups:\n"
        "      - {worker_type: regular, num_gpus: 1, overrides: {mem-fraction-static: 0.8}}\n"
    )

    found = layout("--sglang-config", str(path))

    assert found.models[0].groups[0].overrides == {"mem_fraction_static": 0.8}
    assert found.warnings == ("the override mem-fraction-static of a is read as mem_fraction_static",)


def test_an_engine_stays_on_one_node(path: Path) -> None:
    path.write_text(
        "sglang:\n  - {name: a, num_gpus_per_engine: 8, server_groups: [{worker_type: regular, num_gpus: 8}]}\n"
    )

    with pytest.raises(UsageError, match="an engine of a has 8 GPUs, and a node 4"):
        layout_of(config_of("--sglang-config", str(path), "--num-gpus-per-node", "4"), ())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rollout-num-gpus-per-engine", "16"), "is more than a node has"),
        (("--rollout-num-gpus", "1", "--rollout-num-gpus-per-engine", "2"), "is too few for an engine"),
        (("--rollout-num-gpus", "4", "--rollout-num-engines", "3"), "is 3, not rollout_num_gpus = 4"),
        (("--sglang-config", "x.yaml", "--prefill-num-servers", "1"), "is what sglang_config says, too"),
        (("--sglang-config", "x.yaml", "--rollout-external-engine-addrs", "a:1"), "is what sglang_config says, too"),
        (("--prefill-num-servers", "2", "--rollout-num-engines", "2"), "leaves none of rollout_num_engines = 2"),
        (("--sglang-router-ip", "10.0.0.1"), "needs sglang_router_port beside it"),
        (("--sglang-dp-size", "2"), "unless attention alone is data parallel"),
        (("--serving-mode", "service", "--rollout-external-engine-addrs", "a:1"), "names running ones"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_of(*words)

    assert says in str(caught.value)

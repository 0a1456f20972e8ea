from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.serving import options
from slime_stages.serving.flags import usable_overrides
from slime_stages.serving.launch import EngineOptions, server_command
from slime_stages.serving.layout import layout_of
from slime_stages.serving.options import engine_options, own_host, router_options
from slime_stages.serving.router import router_command
from tests.slime_stages.serving.settings import config_of


def options_of(*words: str, gpus: int = 0, encoder_urls: tuple[str, ...] = ()) -> list[EngineOptions]:
    """Of every engine."""
    config = config_of(*words)
    layout = layout_of(config, tuple(map(str, range(gpus))))
    return [
        engine_options(config, layout, model, group, number, encoder_urls=encoder_urls)
        for model in layout.models
        for group in model.groups
        for number in range(len(group.first_gpus))
    ]


def value_after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_each_engine_sees_its_own_gpus_and_has_a_seed_of_its_own() -> None:
    first, second = options_of("--rollout-num-gpus-per-engine", "2", "--seed", "7", gpus=4)

    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in (first, second)] == ["0,1", "2,3"]
    assert (first.seed, second.seed) == (7, 9)
    assert first.layout["tp_size"] == 2


def test_pipeline_stages_leave_fewer_gpus_to_tensor_parallelism() -> None:
    [one] = options_of("--rollout-num-gpus-per-engine", "8", "--sglang-pp-size", "2", gpus=8)

    assert one.layout["tp_size"] == 4
    with pytest.raises(UsageError, match="has 8 GPUs, which 3 pipeline stages do not divide"):
        options_of("--rollout-num-gpus-per-engine", "8", "--sglang-pp-size", "3", gpus=8)


def test_engines_tell_the_experts_that_are_to_be_trained(tiny_model: Path) -> None:
    [plain], [telling] = options_of(), options_of("--use-rollout-routing-replay")

    assert "--enable-return-routed-experts" not in server_command(plain, tiny_model, "3", 1000)
    assert "--enable-return-routed-experts" in server_command(telling, tiny_model, "3", 1000)


def test_engines_without_a_gpu_share_the_cores(tiny_model: Path) -> None:
    one, other = options_of("--rollout-num-engines", "2")

    assert one.engines_beside == other.engines_beside == 1
    assert one.environment == {}


def test_prefill_and_decode_engines_get_their_roles_and_ports(tiny_model: Path) -> None:
    words = ("--prefill-num-servers", "1", "--sglang-enable-hierarchical-cache", "--rollout-num-gpus", "2")
    prefill, decode = options_of(*words)

    command = server_command(prefill, tiny_model, "3", 1000, ports={"disaggregation_bootstrap_port": 1001})
    assert value_after(command, "--disaggregation-mode") == "prefill"
    assert value_after(command, "--load-balance-method") == "follow_bootstrap_room"
    assert value_after(command, "--disaggregation-bootstrap-port") == "1001"
    assert "--enable-hierarchical-cache" in command
    assert prefill.port_flags == ("disaggregation_bootstrap_port",)

    command = server_command(decode, tiny_model, "3", 1002)
    assert value_after(command, "--disaggregation-mode") == "decode"
    assert "--enable-hierarchical-cache" not in command
    assert decode.port_flags == ()


def test_language_engines_learn_where_the_encoders_are(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(
        "sglang:\n  - name: vision\n    server_groups:\n"
        "      - {worker_type: encoder, num_gpus: 1}\n      - {worker_type: regular, num_gpus: 1}\n"
    )
    encoder, regular = options_of("--sglang-config", str(path), encoder_urls=("http://a:1",))

    assert "--encoder-only" in server_command(encoder, tiny_model, "3", 1000)
    command = server_command(regular, tiny_model, "3", 1000)
    assert value_after(command, "--encoder-urls") == "http://a:1"
    assert "--language-only" in command
    assert regular.port_flags == ("encoder_bootstrap_port",)
    assert (encoder.environment, regular.environment) == ({}, {"SGLANG_HOST_IP": "127.0.0.1"})


def test_overrides_win_over_flags_and_over_the_layout(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(
        "sglang:\n  - name: a\n    server_groups:\n"
        "      - {worker_type: regular, num_gpus: 1, overrides: {tp_size: 2, dtype: bfloat16}}\n"
    )
    [one] = options_of("--sglang-config", str(path), "--sglang-dtype", "float16")

    command = server_command(one, tiny_model, "3", 1000)
    assert value_after(command, "--tp-size") == "2"
    assert value_after(command, "--dtype") == "bfloat16"


def test_an_override_that_sglang_does_not_have_is_left_out_with_a_warning() -> None:
    usable, warnings = usable_overrides({"mem_fraction_sttic": 0.8, "page_size": 1, "tp-size": 2}, sys.executable)

    assert usable == {"page_size": 1, "tp_size": 2}
    assert warnings == [
        "the override mem_fraction_sttic is left out: SGLang has no such option; did you mean mem_fraction_static?"
    ]
    with pytest.raises(UsageError, match="the override port cannot be set"):
        usable_overrides({"port": 1}, sys.executable)


def test_the_router_is_started_with_slimes_defaults_and_what_the_user_wants() -> None:
    config = config_of(
        "--router-policy", "consistent_hashing", "--router-balance-abs-threshold", "3", "--prefill-num-servers", "1"
    )
    model = layout_of(config, ()).models[0]

    command = router_command(router_options(config, model), 4000)

    assert command[1:3] == ["-m", "smg.launch_router"]
    assert value_after(command, "--port") == "4000"
    assert value_after(command, "--policy") == "consistent_hashing"
    assert value_after(command, "--balance-abs-threshold") == "3"
    assert value_after(command, "--balance-rel-threshold") == "1.2"
    assert value_after(command, "--log-level") == "warn"
    assert value_after(command, "--request-timeout-secs") == "14400"
    assert {"--disable-health-check", "--disable-circuit-breaker", "--pd-disaggregation"} <= set(command)


def test_only_a_job_is_reached_from_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLIME_HOST_IP", raising=False)
    assert own_host() == "127.0.0.1"

    monkeypatch.setattr(options, "_address", lambda: "10.0.0.9")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert own_host() == "10.0.0.9"

    monkeypatch.setenv("SLIME_HOST_IP", "10.1.1.1")
    assert own_host() == "10.1.1.1"


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ((), {"skip_tokenizer_init": True}),
        (("--multimodal-keys", '{"image": "images"}'), {"enable_multimodal": True}),
        (
            ("--multimodal-keys", '{"image": "images"}', "--sglang-enable-multimodal", "false"),
            {"enable_multimodal": False},
        ),
    ],
)
def test_an_engine_is_told_of_images_only_where_there_are_any(words: tuple[str, ...], flags: dict[str, object]) -> None:
    [one] = options_of(*words)

    assert dict(one.flags) == {"served_model_name": "actor", **flags}

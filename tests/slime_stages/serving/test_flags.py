from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slime_stages.errors import MissingInputError, UsageError
from slime_stages.serving.flags import check_router_flags, check_sglang_flags, to_words
from slime_stages.serving.installation import Flag, inspect_installation

PRINT_OPTIONS = """
import argparse, json, sys
kind, (module, name) = sys.argv[1], sys.argv[2].split(":")
parser = argparse.ArgumentParser(add_help=False)
getattr(__import__(module, fromlist=[name]), name).add_cli_args(parser)
def describe(action):
    if isinstance(action, argparse.BooleanOptionalAction):
        return "either"
    return "switch" if action.nargs == 0 else "value"
print(json.dumps({option: describe(a) for a in parser._actions for option in a.option_strings}))
"""


def options_of_parser(program: str, parser: str) -> dict[str, str]:
    """What the program's own parser takes, by importing it: {option: kind}."""
    command = [sys.executable, "-c", PRINT_OPTIONS, program, parser]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("program", "parser"),
    [("sglang", "sglang.srt.server_args:ServerArgs"), ("smg", "smg.router_args:RouterArgs")],
)
def test_flags_read_from_source_are_those_of_the_parser(program: str, parser: str) -> None:
    installation = inspect_installation(sys.executable)
    flags = installation.sglang_flags if program == "sglang" else installation.router_flags

    by_option = {flag.option: flag.kind for flag in flags.values()}
    by_option |= {"--no-" + option[2:]: kind for option, kind in by_option.items() if kind == "either"}

    expected = options_of_parser(program, parser)
    assert {option: by_option.get(option) for option in expected} == expected


def test_a_misspelt_flag_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="`--sglang-mem-fraction-sttic` is not an option of sglang") as caught:
        check_sglang_flags({"mem_fraction_sttic": 0.8}, sys.executable)

    assert caught.value.hint == "did you mean --sglang-mem-fraction-static?"


def test_a_flag_that_is_ours_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="`--sglang-port` cannot be set: engines take a free port and report it"):
        check_sglang_flags({"port": 30000}, sys.executable)
    with pytest.raises(UsageError, match="`--router-worker-urls` cannot be set: engines register themselves"):
        check_router_flags({"worker-urls": "http://a"}, sys.executable)


def test_known_flags_come_back_by_field_name() -> None:
    assert check_sglang_flags({"mem-fraction-static": 0.8}, sys.executable) == {"mem_fraction_static": 0.8}
    assert check_router_flags({"policy": "consistent_hashing"}, sys.executable) == {"policy": "consistent_hashing"}


def test_a_switch_with_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match=r"`--sglang-disable-radix-cache` is a switch of sglang .*, not 3"):
        check_sglang_flags({"disable_radix_cache": 3}, sys.executable)


def test_an_interpreter_without_sglang_is_said_to_lack_it() -> None:
    with pytest.raises(MissingInputError, match="has no package `sglang`"):
        check_sglang_flags({}, f"{sys.executable} -S")


def test_an_interpreter_that_does_not_run_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="the interpreter of the engines, `/no/python`, does not run"):
        inspect_installation("/no/python")


def test_flags_become_words_of_a_command_line() -> None:
    known = {
        "fp8_gemm_runner_backend": Flag(option="--fp8-gemm-backend", kind="value"),
        "cuda_graph_bs": Flag(option="--cuda-graph-bs", kind="value"),
        "sleep_on_idle": Flag(option="--sleep-on-idle", kind="switch"),
        "enable_lora": Flag(option="--enable-lora", kind="either"),
    }
    flags = {"fp8_gemm_runner_backend": "triton", "cuda-graph-bs": (1, 2), "sleep_on_idle": False, "enable_lora": False}

    assert to_words(flags, known) == ["--fp8-gemm-backend", "triton", "--cuda-graph-bs", "1", "2", "--no-enable-lora"]

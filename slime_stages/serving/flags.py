"""Pass-through flags, `--sglang-*` and `--router-*`: checked against what is installed, then put on a command line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping

from slime_stages.errors import MissingInputError, UsageError
from slime_stages.serving.installation import Flag, inspect_installation

LAYOUT = "the layout of the engines decides it: see `sglang-config` and `rollout-num-gpus-per-engine`"
OWNED_SGLANG = {
    "model_path": "the plan names the weights: set `hf-checkpoint`",
    "model": "the plan names the weights: set `hf-checkpoint`",
    "weight_version": "the plan names it",
    "config": "give the flags themselves, or an `sglang-config` file",
    "trust_remote_code": "it is always on",
    "host": "engines report their own address",
    "port": "engines take a free port and report it",
    "random_seed": "it follows from `rollout-seed`",
    "skip_server_warmup": "it is always on",
    "enable_memory_saver": "stages share no GPU, so that there is nothing to hand over",
    "enable_return_routed_experts": "set `use-rollout-routing-replay`",
    **dict.fromkeys(("tp_size", "tensor_parallel_size", "nnodes", "node_rank", "dist_init_addr"), LAYOUT),
    **dict.fromkeys(("gpu_id_step", "base_gpu_id", "nccl_port", "nccl_init_addr"), LAYOUT),
}
"""Options of SGLang that a user may not pass, each with the reason."""

OWNED_ROUTER = {
    "host": "the router reports its own address",
    "port": "the router takes a free port and reports it",
    "worker_urls": "engines register themselves",
    "prometheus_host": "it is the router's host",
    "prometheus_port": "the router takes a free port",
    "pd_disaggregation": "it follows from the worker types in `sglang-config`",
}
"""Options of smg that a user may not pass, each with the reason."""


def check_sglang_flags(flags: Mapping[str, object], python: str) -> dict[str, object]:
    """`flags` by field name with underscores, if the SGLang that `python` finds knows them all and none is ours."""
    installation = inspect_installation(python)
    _require(installation.sglang_flags, "sglang", python)
    version = installation.versions.get("sglang", "")
    return _checked(flags, installation.sglang_flags, OWNED_SGLANG, prefix="sglang", program=f"sglang {version}")


def check_router_flags(flags: Mapping[str, object], python: str) -> dict[str, object]:
    """The same for the router, smg."""
    installation = inspect_installation(python)
    _require(installation.router_flags, "smg", python)
    version = installation.versions.get("smg", "")
    return _checked(flags, installation.router_flags, OWNED_ROUTER, prefix="router", program=f"smg {version}")


def usable_overrides(overrides: Mapping[str, object], python: str) -> tuple[dict[str, object], list[str]]:
    """Options of a group in `sglang_config` that the installed SGLang knows, and a warning for each other one.

    UsageError for one that is ours.
    """
    installation = inspect_installation(python)
    _require(installation.sglang_flags, "sglang", python)
    usable, warnings = {}, []
    for given, value in overrides.items():
        name = _normalise(given)
        if name in OWNED_SGLANG and OWNED_SGLANG[name] != LAYOUT:
            raise UsageError(f"the override {name} cannot be set: {OWNED_SGLANG[name]}", hint=f"remove {name}")
        if name in installation.sglang_flags:
            usable[name] = value
            continue
        close = difflib.get_close_matches(name, installation.sglang_flags, n=1)
        instead = f"; did you mean {close[0]}?" if close else ""
        warnings.append(f"the override {name} is left out: SGLang has no such option{instead}")
    return usable, warnings


def to_words(flags: Mapping[str, object], known: Mapping[str, Flag]) -> list[str]:
    """`flags` as words of a command line, in the program's own spelling; None, and False for a switch, are left out."""
    return [word for name, value in flags.items() for word in _words(known[_normalise(name)], value)]


def _words(flag: Flag, value: object) -> Iterator[str]:
    if value is None:
        return
    if flag.kind in ("switch", "either"):
        if value:
            yield flag.option
        elif flag.kind == "either":
            yield "--no-" + flag.option.removeprefix("--")
        return
    yield flag.option
    if isinstance(value, Mapping):
        yield json.dumps(value)
    elif isinstance(value, list | tuple):
        yield from (str(item) for item in value)
    else:
        yield str(value)


def _checked(
    flags: Mapping[str, object], known: Mapping[str, Flag], owned: Mapping[str, str], *, prefix: str, program: str
) -> dict[str, object]:
    checked = {}
    for given, value in flags.items():
        name = _normalise(given)
        option = f"--{prefix}-{name.replace('_', '-')}"
        if name in owned:
            raise UsageError(f"`{option}` cannot be set: {owned[name]}", hint=f"remove {option}")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            suggestion = f"did you mean --{prefix}-{close[0].replace('_', '-')}?" if close else f"remove {option}"
            raise UsageError(f"`{option}` is not an option of {program}", hint=suggestion)
        if known[name].kind != "value" and not isinstance(value, bool | None):
            raise UsageError(f"`{option}` is a switch of {program}, not {value!r}", hint=f"{option} without a value")
        checked[name] = value
    return checked


def _normalise(name: str) -> str:
    return name.strip("-").replace("-", "_")


def _require(found: Mapping[str, Flag], package: str, python: str) -> None:
    if not found:
        raise MissingInputError(
            f"`{python}` has no package `{package}`",
            hint="set --serving-python to the Python that has sglang installed",
        )

"""The command and environment that start an SGLang server, on a GPU or, with switches of its own, on a CPU."""

from __future__ import annotations

import getpass
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slime_stages.serving.flags import check_sglang_flags, to_words
from slime_stages.serving.installation import OWN_PYTHON, Installation, inspect_installation
from slime_stages.serving.speculation import draft_flags, verification_flags

STAND_INS = Path(__file__).with_name("cpu_stand_ins")
ACCELERATOR_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/davinci[0-9]*", "/dev/dxg")
TINY_WEIGHTS_BYTES = 64 << 20
"""Below this a second thread costs more in waiting than it computes."""

MOST_THREADS = 8
"""By default; more wait for each other in the small products of a model that fits a CPU."""

TOKENS_ONLY_FLAGS: Mapping[str, object] = {"skip_tokenizer_init": True}
"""For a caller that sends ids, reads ids and has no stop strings: halves the start, as no tokenizer is loaded."""

CPU_FLAGS: Mapping[str, object] = {
    "device": "cpu",
    "dtype": "float32",
    "max_total_tokens": 16384,
    "sleep_on_idle": True,
}
"""Defaults without a GPU: `auto` would serve float16, and take most of the memory for its cache."""

SEEDED_CPU_FLAGS: Mapping[str, object] = {
    "attention_backend": "torch_native",
    "enable_deterministic_inference": True,
}
"""With the stand-in kernels: a sample is a function of its prompt and `sampling_seed`, whatever runs beside it."""

APART_CPU_FLAGS: Mapping[str, object] = {
    "disaggregation_transfer_backend": "mooncake_tcp",
    "disable_overlap_schedule": True,
}
"""For engines that compute prompts or decode: caches go over TCP, and the overlap would wait for events of a GPU."""

PIL_FLAGS: Mapping[str, object] = {"disable_fast_image_processor": True}
"""With the stand-in for torchvision, which has names alone: images are made ready without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How engines are started, apart from the weights."""

    python: str = OWN_PYTHON
    """Command of the interpreter that has sglang."""

    host: str = "127.0.0.1"
    """Address to listen on and to report."""

    device: str = "auto"
    """`auto`: a CPU server where no GPU is seen. Or `cpu`, or `gpu`."""

    seed: int = 1234
    """SGLang's random seed; samples carry seeds of their own."""

    threads: int | None = None
    """Of one process on a CPU; None: half the cores that are its own, at most 8, but 1 for a tiny model."""

    engines_beside: int = 0
    """Other engines on the same machine: without a GPU all of them share its cores."""

    flags: Mapping[str, object] = field(default_factory=dict)
    """`--sglang-*`, by name with underscores."""

    layout: Mapping[str, object] = field(default_factory=dict)
    """Options that the layout of the engines decides, such as `tp_size`; not checked against what a user may set."""

    port_flags: tuple[str, ...] = ()
    """Options that take a free port each, such as `disaggregation_bootstrap_port`."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the server alone, over all others."""

    start_timeout_seconds: float = 900.0
    """From the start of the process until it is healthy, the loading of weights included."""

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu" or (self.device == "auto" and not has_accelerator())

    @property
    def is_encoder(self) -> bool:
        """Whether the engine turns images into embeddings for others, and answers nobody else."""
        return bool(self.layout.get("encoder_only"))


def has_accelerator() -> bool:
    """True if this process may use a GPU or the like; asks the device files, not a driver."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    root = Path("/")
    return any(next(root.glob(pattern.lstrip("/")), None) for pattern in ACCELERATOR_DEVICES)


def server_command(
    options: EngineOptions, model: Path, weight_version: str, port: int, *, ports: Mapping[str, int] | None = None
) -> list[str]:
    """The words that start a server of `model` on `port`; `ports` are those of the options in `port_flags`."""
    installation = inspect_installation(options.python)
    given = check_sglang_flags(options.flags, options.python)
    owned = {
        "model_path": str(model),
        "weight_version": weight_version,
        "host": options.host,
        "port": port,
        "random_seed": options.seed,
        "skip_server_warmup": True,
        "trust_remote_code": True,
    }
    flags = {**_defaults(options, installation, model), **given, **options.layout, **(ports or {}), **owned}
    return [*installation.python, "-m", "sglang.launch_server", *to_words(flags, installation.sglang_flags)]


def server_environment(options: EngineOptions, model: Path) -> dict[str, str]:
    """This process's environment, offline, with what a server without a GPU needs, then `options.environment`."""
    environment = dict(os.environ)
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
    )
    if options.on_cpu:
        environment |= _cpu_environment(options, model)
    environment.update(options.environment)
    return environment


def _defaults(options: EngineOptions, installation: Installation, model: Path) -> dict[str, object]:
    wanted = {**options.flags, **options.layout}
    drafts = draft_flags(wanted, model)
    if not options.on_cpu:
        return drafts
    seeded = SEEDED_CPU_FLAGS if _lacks_kernels(installation) else {}
    apart = APART_CPU_FLAGS if "disaggregation_mode" in options.layout else {}
    images = PIL_FLAGS if _lacks_torchvision(installation) else {}
    verified = verification_flags(wanted, has_kernels=not _lacks_kernels(installation))
    return {**CPU_FLAGS, **seeded, **apart, **images, **drafts, **verified}


def _cpu_environment(options: EngineOptions, model: Path) -> dict[str, str]:
    installation = inspect_installation(options.python)
    folders = [STAND_INS / "torchvision"] if _lacks_torchvision(installation) else []
    plugin: dict[str, str] = {}
    if _lacks_kernels(installation):
        folders += [STAND_INS / "sgl_kernel", STAND_INS / "plugin"]
        plugin = _served_model(model)
    cores = sorted(os.sched_getaffinity(0))
    most = 1 if _weights_bytes(model) < TINY_WEIGHTS_BYTES else MOST_THREADS
    threads = options.threads or max(1, min(most, len(cores) // 2 // (1 + options.engines_beside)))
    ranks = _count(options.layout, "tp_size") * _count(options.flags, "dp_size")
    binding = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(_shares(cores, ranks))} if ranks > 1 else {}
    return {
        "PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # compiling one sampling function takes longer than a short job
        "MKL_CBWR": "AVX2,STRICT",  # the same bits with any number of threads
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin at a barrier starve each other on a busy node
        **plugin,
        **binding,
    }


def _served_model(model: Path) -> dict[str, str]:
    """Lets SGLang import one model's module instead of all of them."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    architectures = config.get("architectures") or []
    if not architectures:
        return {}
    return {"SGLANG_EXTERNAL_MODEL_PACKAGE": "slime_stages_served", "SLIME_STAGES_ARCHITECTURE": architectures[0]}


def _lacks_kernels(installation: Installation) -> bool:
    """SGLang's kernel packages on the index need CUDA's libraries; only one built from source serves a CPU."""
    return "sgl-kernel-cpu" not in installation.versions


def _lacks_torchvision(installation: Installation) -> bool:
    """A torchvision of another build than torch's does not import."""
    torchvision, torch = installation.versions.get("torchvision"), installation.versions.get("torch", "")
    return torchvision is None or torchvision.partition("+")[2] != torch.partition("+")[2]


def _weights_bytes(model: Path) -> int:
    return sum(path.stat().st_size for path in model.glob("*.safetensors"))


def _count(flags: Mapping[str, object], name: str) -> int:
    return int(str(flags.get(name) or 1))


def _shares(cores: list[int], ranks: int) -> list[str]:
    """The cores of each rank, as SGLang writes them: `0,1` and `2,3`; ranks share cores where there are too few."""
    size = max(1, len(cores) // ranks)
    firsts = [(rank * size) % len(cores) for rank in range(ranks)]
    return [",".join(map(str, cores[first : first + size])) for first in firsts]

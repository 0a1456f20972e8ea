"""Speculative decoding: where its drafts come from, and what a server without a GPU needs to sample with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slime_stages.errors import UsageError
from slime_stages.serving.handle import EngineHandle

OWN_LAYERS = ("EAGLE", "NEXTN")
"""Algorithms that draft with layers of the model itself, unless they are given another folder."""

SAMPLES_ON_CPU = ("NGRAM", "STANDALONE", "EAGLE", "EAGLE3", "NEXTN")
"""Algorithms whose verification samples on a CPU, as our plug-in for the server sees to."""

VERIFICATION_FLAGS: Mapping[str, object] = {
    "prefill_attention_backend": "intel_amx",
    "decode_attention_backend": "intel_amx",
}
"""The attention with which SGLang verifies drafts on a CPU, of whatever make."""


def draft_flags(flags: Mapping[str, object], model: Path) -> dict[str, object]:
    """Defaults anywhere: a model with layers that predict further ahead drafts with those of the version it serves."""
    if algorithm_of(flags) not in OWN_LAYERS:
        return {}
    layers = (_config(model) or {}).get("num_nextn_predict_layers")
    return {"speculative_draft_model_path": str(model)} if layers else {}


def without_own_draft(flags: Mapping[str, object], checkpoint: str) -> dict[str, object]:
    """`flags` of a policy that began as `checkpoint`: its own layers are those of each version, not the first's."""
    draft = flags.get("speculative_draft_model_path")
    names_itself = draft is not None and Path(str(draft)).resolve() == Path(checkpoint).resolve()
    drops = names_itself and algorithm_of(flags) in OWN_LAYERS
    return {name: value for name, value in flags.items() if not (drops and name == "speculative_draft_model_path")}


def verification_flags(flags: Mapping[str, object], *, has_kernels: bool) -> Mapping[str, object]:
    """Defaults without a GPU; UsageError where tokens would not be drawn from the policy."""
    algorithm = algorithm_of(flags)
    if algorithm is None:
        return {}
    if has_kernels:
        raise UsageError(
            f"with sgl-kernel-cpu, speculative decoding ({algorithm}) takes the likeliest token at any temperature",
            hint="remove --sglang-speculative-algorithm, or uninstall sgl-kernel-cpu from the Python of the engines",
        )
    if algorithm not in SAMPLES_ON_CPU:
        raise UsageError(
            f"speculative decoding by {algorithm} is not known to sample on a CPU",
            hint=f"--sglang-speculative-algorithm, one of {', '.join(SAMPLES_ON_CPU)}",
        )
    return VERIFICATION_FLAGS


def algorithm_of(flags: Mapping[str, object]) -> str | None:
    """SGLang takes its name in any case."""
    given = flags.get("speculative_algorithm")
    return None if given is None else str(given).upper()


def refuse_to_overwrite_draft(engine: EngineHandle, info: Mapping[str, object], weights: Path) -> None:
    """UsageError if the engine drafts with another model: SGLang loads new weights into that, too, however they fit.

    `info` is what the engine says of its options.
    """
    draft = info.get("speculative_draft_model_path")
    if draft and _config(Path(str(draft))) != _config(weights):
        raise UsageError(
            f"{engine.url} drafts with {draft}, which {weights} would overwrite",
            hint="--serving-mode job, which starts engines with each version, or --sglang-speculative-algorithm NGRAM",
        )


def _config(model: Path) -> dict[str, object] | None:
    try:
        config: dict[str, object] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    return config

"""Check a Hugging Face folder by what the trained model said: it must load strictly and give the same log-probs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from slime_stages.errors import DataError
from slime_stages.weights.mapping.families import families
from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout

OF_CLASSES = ("model_type", "auto_map")
HINT = "compare the checkpoint with the model folder that the run began with, then slime-stages sync --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A sequence with the log-probs that the trained model gives its last R tokens."""

    tokens: list[int]
    """Prompt and response."""

    log_probs: list[float]
    """[R] natural log."""

    temperature: float = 1.0
    """What logits were divided by."""

    def __post_init__(self) -> None:
        assert 0 < len(self.log_probs) < len(self.tokens), (len(self.log_probs), len(self.tokens))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """From a row as the train stage's manifest holds it; other keys are left out."""
        return cls(
            tokens=list(values["tokens"]),
            log_probs=list(values["log_probs"]),
            temperature=values.get("temperature", 1.0),
        )


def verify_log_probs(folder: Path, probes: Iterable[Probe], tolerance: float) -> float:
    """The largest gap between a probe's log-probs and those of the folder's model; DataError above `tolerance`."""
    model = load_strictly(folder)
    worst, where = 0.0, "no probe"
    for number, probe in enumerate(probes):
        found = _log_probs(model, probe)
        gaps = (found - torch.tensor(probe.log_probs, dtype=torch.float64)).abs()
        position = int(gaps.nan_to_num(nan=math.inf).argmax())
        gap = float(gaps[position].nan_to_num(nan=math.inf))
        if gap >= worst:
            worst = gap
            where = (
                f"token {position} of probe {number}: {float(found[position]):.5f}, not {probe.log_probs[position]:.5f}"
            )
    if worst > tolerance:
        raise DataError(f"log-probs of {folder} are off by {worst:.2g} (at most {tolerance:.2g}), {where}", hint=HINT)
    return worst


def load_strictly(folder: Path) -> Any:
    """The folder's model as transformers reads it; DataError if a weight is missing, superfluous or misshapen."""
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained
    config = read_huggingface_config(folder)
    with _quiet():
        how = {"dtype": "auto", "output_loading_info": True, "local_files_only": True, **read_as(config)}
        model, found = read(folder, **how)
    layout = weight_layout(config)
    found["unexpected_keys"] = [name for name in found["unexpected_keys"] if not layout.is_of_prediction(name)]
    wrong = {what: sorted(map(str, keys)) for what, keys in found.items() if keys}
    if wrong:
        told = "; ".join(f"{what.replace('_', ' ')}: {', '.join(keys[:3])}" for what, keys in sorted(wrong.items()))
        raise DataError(f"{folder} does not load strictly: {told}", hint=HINT)
    return model.eval()


def read_as(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config to read a model by that transformers has no class for: that of the family its layers are of."""
    from transformers import AutoConfig

    kind = families()[config["model_type"]].read_as
    if kind is None:
        return {}
    make: Any = AutoConfig.for_model
    return {"config": make(kind, **{name: value for name, value in config.items() if name not in OF_CLASSES})}


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no warnings of transformers: what matters becomes an error."""
    from transformers.utils import logging

    settings: Any = logging
    verbosity = settings.get_verbosity()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        settings.enable_progress_bar()


@torch.inference_mode()
def _log_probs(model: Any, probe: Probe) -> torch.Tensor:
    """[R] of the probe's response."""
    tokens = torch.tensor([probe.tokens])
    count = len(probe.log_probs)
    logits = model(tokens, use_cache=False, logits_to_keep=count + 1).logits[0, :-1].float() / probe.temperature
    chosen = logits.log_softmax(-1).gather(-1, tokens[0, -count:, None])
    log_probs: torch.Tensor = chosen.squeeze(-1).double()
    return log_probs

"""`slime-stages convert`: weights from Hugging Face's format into Megatron's torch_dist, or back."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slime_stages.errors import MissingInputError, UsageError

TO_TORCH_DIST = "stages.train.convert:convert_to_torch_dist"


class Dtype(StrEnum):
    """Of the weights that are written."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Source = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="Hugging Face folder, torch_dist checkpoint, or folder of checkpoints.")
]
Target = Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to write; it must not exist.")]
Template = Annotated[
    Path | None,
    typer.Option(
        "--hf-checkpoint",
        metavar="FOLDER",
        help="Model that the training began with, for config and tokenizer; known for a checkpoint within a run.",
        show_default=False,
    ),
]
Step = Annotated[
    int | None,
    typer.Option("--step", metavar="N", min=0, help="Which checkpoint of a folder. [default: the newest]"),
]
WrittenDtype = Annotated[
    Dtype | None, typer.Option("--dtype", help="Of what is written. [default: as the model's config says]")
]
ShardSize = Annotated[float, typer.Option("--max-shard-gb", metavar="GB", min=1e-6, help="Largest safetensors file.")]


def command(
    source: Source,
    target: Target,
    hf_checkpoint: Template = None,
    step: Step = None,
    dtype: WrittenDtype = None,
    max_shard_gb: ShardSize = 5.0,
) -> None:
    """Turn weights from Hugging Face's format into Megatron's torch_dist, or back: SOURCE says which.

    A checkpoint of any parallel layout is read, and what is written is loaded by any. Nothing needs a GPU. Prints the
    folder to name: TARGET.
    """
    from slime_stages.weights.convert import refuse_existing

    source, target = source.absolute(), target.absolute()
    refuse_existing(target)
    if not source.is_dir():
        raise MissingInputError(f"{source} is no folder", hint="slime-stages convert --help")
    if (source / "config.json").is_file():
        if hf_checkpoint is not None or step is not None:
            given = "--hf-checkpoint" if hf_checkpoint is not None else "--step"
            raise UsageError(f"{source} is a Hugging Face folder, for which {given} has no meaning", hint="drop it")
        _to_torch_dist(source, target, dtype)
    else:
        _to_huggingface(source, target, hf_checkpoint, step, dtype, round(max_shard_gb * 1e9))
    typer.echo(target)


def _to_torch_dist(source: Path, target: Path, dtype: Dtype | None) -> None:
    from slime_stages.plugins import load_function
    from slime_stages.weights.hf_folder import check_hf_folder

    check_hf_folder(source)
    if dtype is Dtype.float16:
        raise UsageError("the trainer computes in float32 or bfloat16, not in float16", hint="--dtype bfloat16")
    load_function(TO_TORCH_DIST)(source, target, dtype=None if dtype is None else dtype.value)
    _say_next(f"--ref-load {target}")


def _to_huggingface(
    source: Path, target: Path, template: Path | None, step: int | None, dtype: Dtype | None, max_shard_bytes: int
) -> None:
    from slime_stages.weights.checkpoints import find_weights
    from slime_stages.weights.convert import convert_to_huggingface

    checkpoint = find_weights(source, step)
    report = convert_to_huggingface(
        checkpoint,
        template.absolute() if template is not None else _template_of_run(checkpoint),
        target,
        dtype=None if dtype is None else dtype.value,
        max_shard_bytes=max_shard_bytes,
    )
    print(f"{report.tensor_count} tensors of {checkpoint} in {report.dtype}", file=sys.stderr)
    _say_next(f"--hf-checkpoint {target}")


def _template_of_run(checkpoint: Path) -> Path:
    """The model that the run began with, whose checkpoint this is."""
    from slime_stages.run.rundir import RunDir

    for folder in checkpoint.parents:
        if (template := RunDir(folder).weights_path(0)).is_dir():
            return template
    raise UsageError(
        f"{checkpoint} does not say of which model it is",
        hint="--hf-checkpoint FOLDER, the model that training began with",
    )


def _say_next(flag: str) -> None:
    print(f"next: slime-stages init --run RUN --config CONFIG.toml {flag}", file=sys.stderr)

"""What a Hugging Face model folder must hold for an engine and a trainer to read it. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import orjson

from slime_stages.errors import DataError, MissingInputError
from slime_stages.weights.record import RECORD

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt")
POINTER_START = b"version https://git-lfs"


def check_hf_folder(path: Path) -> list[Path]:
    """Return the weight files of a usable model folder; MissingInputError says what is missing."""
    if not path.is_dir():
        raise MissingInputError(
            f"model folder {path} does not exist", hint="--hf-checkpoint FOLDER, a local folder in Hugging Face format"
        )
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    weights = _weight_files(path)
    absent = [file.name for file in weights if not file.is_file()]
    missing += absent or ([] if weights else [f"weights ({SINGLE_FILE}, or {INDEX} and its files)"])
    if not any((path / name).is_file() for name in TOKENIZERS):
        missing.append("a tokenizer (tokenizer.json)")
    if missing:
        raise MissingInputError(f"model folder {path} is without {', '.join(missing)}", hint=_hint(path, missing))
    _refuse_pointers(path, weights)
    return weights


def other_files(path: Path) -> list[Path]:
    """Everything in a model folder that is not weights: config, tokenizer, chat template, code."""
    return [file for file in visible_files(path) if file.suffix not in WEIGHT_SUFFIXES and not _is_about_weights(file)]


def visible_files(path: Path) -> list[Path]:
    """The files directly in a folder, without hidden ones, in order."""
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


def _weight_files(path: Path) -> list[Path]:
    if (path / INDEX).is_file():
        try:
            names = set(orjson.loads((path / INDEX).read_bytes())["weight_map"].values())
        except (orjson.JSONDecodeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path / INDEX} is not an index of weights: {error!r}", hint="download it again"
            ) from error
        return [path / name for name in sorted(names)]
    return [path / SINGLE_FILE] if (path / SINGLE_FILE).is_file() else []


def _is_about_weights(file: Path) -> bool:
    return file.name.endswith(".index.json") or file.name == RECORD


def _hint(path: Path, missing: list[str]) -> str:
    found = {file.suffix for file in visible_files(path)}
    if ".gguf" in found:
        return "convert the GGUF file: transformers reads it with `gguf_file=`, then `save_pretrained`"
    if found & {".bin", ".pt", ".pth"} and ".safetensors" not in found:
        return "convert the weights: load the folder with transformers, then `save_pretrained` writes safetensors"
    if any("tokenizer" in name for name in missing) and len(missing) == 1:
        return f"copy the tokenizer's files of the base model into {path}"
    return "download the whole model: `hf download MODEL --local-dir FOLDER`"


def _refuse_pointers(path: Path, weights: list[Path]) -> None:
    for file in weights:
        with file.open("rb") as opened:
            if opened.read(len(POINTER_START)) == POINTER_START:
                raise DataError(f"{file} is a Git LFS pointer, not weights", hint=f"git -C {path} lfs pull")

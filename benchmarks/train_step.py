"""What an optimizer step costs, beside transformers with AdamW and TRL's `GRPOTrainer` on the same samples.

    python -m benchmarks.train_step --prompts 4 --samples 4 --steps 2 --threads 2

The same model in float32, samples of mixed lengths, loss and optimizer on all sides, one after the other in processes
of their own; the first step is not counted. Then the memory that the loss takes with a large vocabulary, by
`log_probs_chunk_size`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.train_samples import Outcome, make_samples

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
CHUNKS = ((-1, 1024), (512, 1024), (128, 1024), (128, 2048))
"""`log_probs_chunk_size` and response tokens of the measurements of memory."""
TITLES = {"slime-stages": "slime-stages", "transformers": "transformers + AdamW", "trl": "TRL GRPOTrainer"}


def main() -> None:
    parser = argparse.ArgumentParser(description="tokens a second of an optimizer step, beside transformers and TRL")
    parser.add_argument("--model", type=Path, default=MODEL, help="Hugging Face folder")
    parser.add_argument("--layers", type=int, help="cut the model to so many layers, of random weights")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="of each prompt")
    parser.add_argument("--steps", type=int, default=2, help="to measure, after one to warm up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--skip-trl", action="store_true")
    parser.add_argument("--skip-memory", action="store_true")
    args = parser.parse_args()
    if not args.skip_trl and find_spec("trl") is None:
        sys.exit("error: TRL is not installed\n\nhint: pip install -e '.[bench]', or add --skip-trl")
    names = [name for name in TITLES if name != "trl" or not args.skip_trl]
    with tempfile.TemporaryDirectory() as folder:
        model = args.model if args.layers is None else cut_model(args.model, args.layers, Path(folder) / "model")
        words = [f"--{name}={getattr(args, name)}" for name in ("prompts", "samples", "steps", "threads")]
        print_samples(model, args.prompts, args.samples, args.threads)
        outcomes = {name: measure([name, f"--model={model}", *words], Path(folder)) for name in names}
        print_sides(outcomes, sum(len(s.tokens) for s in make_samples(str(model), args.prompts, args.samples)))
        if not args.skip_memory:
            print_memory([(c, measure(["memory", f"--chunk={c}", f"--tokens={n}"], Path(folder))) for c, n in CHUNKS])


def cut_model(model: Path, layers: int, folder: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(model, num_hidden_layers=layers)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def measure(words: Sequence[str], folder: Path) -> Outcome:
    output = folder / "outcome.json"
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait cost most beside other programs
    }
    command = [sys.executable, "-m", "benchmarks.train_sides", *words, f"--output={output}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr[-4000:]}\n{' '.join(command)} ended with {done.returncode}")
    return Outcome(**json.loads(output.read_text()))


def print_samples(model: Path, prompts: int, count: int, threads: int) -> None:
    lengths = sorted(len(sample.tokens) for sample in make_samples(str(model), prompts, count))
    load = os.getloadavg()[0]
    print(
        f"{len(lengths)} samples of {prompts} prompts, {lengths[0]} to {lengths[-1]} tokens, {sum(lengths)} together;"
    )
    print(f"{threads} threads, and a load average of {load:.1f} at the start\n", flush=True)


def print_sides(outcomes: dict[str, Outcome], tokens: int) -> None:
    """Tokens are those of the samples: what is padded does not count, and a shared prompt counts for each."""
    print(f"{'':22} {'tokens/s':>9} {'tokens/CPU s':>13} {'positions/token':>16} {'peak':>8}   seconds of the steps")
    rates = {name: tokens / min(outcome.seconds) for name, outcome in outcomes.items()}
    by_cpu = {name: tokens / min(outcome.cpu_seconds) for name, outcome in outcomes.items()}
    for name, outcome in outcomes.items():
        spread = ", ".join(f"{seconds:.1f}" for seconds in outcome.seconds)
        figures = f"{rates[name]:9.0f} {by_cpu[name]:13.0f} {outcome.positions / tokens:16.2f}"
        print(f"{TITLES[name]:22} {figures} {outcome.peak_bytes / 1e9:5.1f} GB   {spread}")
    print()
    for name in [name for name in outcomes if name != "slime-stages"]:
        wall, cpu = rates["slime-stages"] / rates[name], by_cpu["slime-stages"] / by_cpu[name]
        print(f"ours makes {wall:.2f} times the tokens a second of {TITLES[name]}, {cpu:.2f} times those a CPU second")
    print(flush=True)


def print_memory(outcomes: Sequence[tuple[int, Outcome]]) -> None:
    print(f"one step with a vocabulary of {outcomes[0][1].vocabulary}:")
    for chunk, outcome in outcomes:
        title = "logits all at once" if chunk < 0 else f"log_probs_chunk_size {chunk}"
        figures = f"{outcome.peak_bytes / 1e9:6.2f} GB more at the peak than before, {outcome.cpu_seconds[0]:.1f} CPU s"
        print(f"  {outcome.positions:5} response tokens, {title:26} {figures}")


if __name__ == "__main__":
    main()

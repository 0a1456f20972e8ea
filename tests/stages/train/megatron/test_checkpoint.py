from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slime_stages.errors import MissingInputError, RetryableError
from slime_stages.weights.checkpoints import is_complete, iteration_folder, latest_iteration, read_record
from slime_stages.weights.export import export_hf
from slime_stages.weights.folders import has_live_writer
from slime_stages.weights.torch_dist import TorchDistReader
from stages.train.megatron import checkpoint
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.checkpoint_ranks import train
from tests.stages.train.megatron.tiny_models import SETTINGS, save_tiny_model
from tests.stages.train.megatron.two_ranks import gather_weights

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def two_ranks(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-ranks")
    process = run_program(model, folder, "two-ranks", ranks=2)
    assert process.returncode == 0, process.stderr[-6000:]
    return folder


def run_program(model: Path, folder: Path, action: str, *, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    program = ["-m", "tests.stages.train.megatron.checkpoint_ranks", action, str(model), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *torchrun, *program]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.module.named_parameters()}


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name, tensor in actual.items() if not torch.equal(tensor, expected[name])] == []


def temporary_folders(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".tmp-")]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing more than `size` bytes to a file fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_fresh_process_resumes_exactly_from_a_save_in_the_background(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model, SETTINGS)
    train(trainer, range(3))
    pending = checkpoint.save(trainer, tmp_path, 3, background=True)
    train(trainer, range(3, 6))
    assert pending.wait() == tmp_path / "iter_0000003"

    process = run_program(model, tmp_path, "resume")

    assert process.returncode == 0, process.stderr[-6000:]
    assert_equal(load_file(tmp_path / "resumed.safetensors"), gather_weights(trainer, model))
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "3"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("distributed_optimizer", [False, True])
def test_training_resumes_exactly(model: Path, tmp_path: Path, dtype: str, distributed_optimizer: bool) -> None:
    settings = replace(SETTINGS, dtype=dtype, use_distributed_optimizer=distributed_optimizer)
    trainer = Trainer(model, settings)
    train(trainer, range(2))
    checkpoint.save(trainer, tmp_path, 2, background=False).wait()
    train(trainer, range(2, 5))
    expected = parameters(trainer)

    trainer = Trainer(model, settings)
    restored = checkpoint.load(trainer, tmp_path, 2)
    train(trainer, range(2, 5))

    assert restored == checkpoint.Restored(iteration=2, with_rng=True)
    assert_equal(parameters(trainer), expected)


@pytest.mark.parametrize("name", ["distributed-optimizer", "tensor-parallel"])
def test_two_ranks_resume_exactly(two_ranks: Path, name: str) -> None:
    straight = load_file(two_ranks / f"{name}-straight.safetensors")

    assert_equal(load_file(two_ranks / f"{name}-resumed.safetensors"), straight)


@pytest.mark.parametrize("name", ["distributed-optimizer", "tensor-parallel"])
def test_weights_that_two_ranks_wrote_are_exported_whole(
    model: Path, two_ranks: Path, tmp_path: Path, name: str
) -> None:
    (model / "tokenizer.json").touch()

    export_hf(two_ranks / name / "iter_0000003", model, tmp_path / "out")

    assert_equal(load_file(tmp_path / "out" / "model.safetensors"), load_file(two_ranks / f"{name}-saved.safetensors"))


@pytest.mark.parametrize("name", ["distributed-optimizer", "tensor-parallel"])
def test_one_rank_goes_on_where_two_stopped(model: Path, two_ranks: Path, name: str) -> None:
    settings = replace(SETTINGS, use_distributed_optimizer=name == "distributed-optimizer")
    trainer = Trainer(model, settings)

    restored = checkpoint.load(trainer, two_ranks / name, 3)

    assert restored.with_rng is True
    assert torch.equal(torch.get_rng_state(), load_file(two_ranks / f"{name}-generator.safetensors")["state"])
    assert_equal(gather_weights(trainer, model), load_file(two_ranks / f"{name}-saved.safetensors"))
    train(trainer, range(3, 6))
    for key, expected in load_file(two_ranks / f"{name}-straight.safetensors").items():
        torch.testing.assert_close(gather_weights(trainer, model)[key], expected, atol=2e-5, rtol=0)


def test_pipeline_stages_go_on_where_tensor_parallel_ranks_stopped_and_one_rank_after_them(
    model: Path, two_ranks: Path
) -> None:
    straight, resharded = (
        load_file(two_ranks / f"{name}.safetensors") for name in ("tensor-parallel-straight", "resharded")
    )
    for key, expected in straight.items():
        torch.testing.assert_close(resharded[key], expected, atol=2e-5, rtol=0)

    trainer = Trainer(model, SETTINGS)
    checkpoint.load(trainer, two_ranks / "pipeline-parallel", 6)

    assert_equal(gather_weights(trainer, model), resharded)
    assert trainer.scheduler.num_steps == 6


def test_the_weights_can_be_read_before_the_optimizer_is_written(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model, SETTINGS)
    train(trainer, range(1))

    pending = checkpoint.save(trainer, tmp_path, 1, background=True)
    folder = pending.wait_for_weights()

    assert read_record(folder).parts == ["model"]
    assert (is_complete(folder), latest_iteration(tmp_path)) == (False, None)
    assert has_live_writer(folder)
    with TorchDistReader(folder) as reader:
        assert_equal({name: reader.read(name) for name in parameters(trainer)}, parameters(trainer))
    with pytest.raises(MissingInputError, match="without its optimizer state"):
        checkpoint.load(trainer, tmp_path, 1)
    pending.wait()
    assert read_record(folder).parts == ["model", "optimizer"]
    assert (is_complete(folder), latest_iteration(tmp_path)) == (True, 1)
    assert not has_live_writer(folder)
    assert temporary_folders(tmp_path) == []


@pytest.mark.parametrize("action", ["die", "die-with-weights"])
def test_a_killed_save_is_not_resumed_from_and_the_next_one_replaces_it(
    model: Path, tmp_path: Path, action: str
) -> None:
    trainer = Trainer(model, SETTINGS)
    checkpoint.save(trainer, tmp_path, 3, background=False).wait()

    assert run_program(model, tmp_path, action).returncode == -signal.SIGKILL

    assert latest_iteration(tmp_path) == 3
    assert temporary_folders(tmp_path) != []
    assert not has_live_writer(iteration_folder(tmp_path, 4))
    checkpoint.save(trainer, tmp_path, 4, background=False).wait()
    assert latest_iteration(tmp_path) == 4
    assert temporary_folders(tmp_path) == []


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_is_told_and_leaves_nothing(model: Path, tmp_path: Path, background: bool) -> None:
    trainer = Trainer(model, SETTINGS)

    with largest_file(30_000), pytest.raises(RetryableError, match=r"no space left to write .*distcp"):
        checkpoint.save(trainer, tmp_path, 1, background=background).wait()

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_replaced_by_a_later_save_of_its_iteration(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model, SETTINGS)
    checkpoint.save(trainer, tmp_path, 1, background=False).wait()
    train(trainer, range(1))
    checkpoint.save(trainer, tmp_path, 1, background=False).wait()

    fresh = Trainer(model, SETTINGS)
    checkpoint.load(fresh, tmp_path, 1)

    assert_equal(parameters(fresh), parameters(trainer))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000001", "latest_checkpointed_iteration.txt"]


@pytest.mark.parametrize("background", [False, True])
def test_the_optimizer_of_a_save_that_was_replaced_meanwhile_does_not_join_the_other_one(
    model: Path, tmp_path: Path, background: bool
) -> None:
    trainer = Trainer(model, SETTINGS)
    replaced = checkpoint.save(trainer, tmp_path, 1, background=background)
    replaced.wait_for_weights("replaced")
    train(trainer, range(1))
    checkpoint.save(trainer, tmp_path, 1, background=background).wait()

    replaced.wait()

    fresh = Trainer(model, SETTINGS)
    checkpoint.load(fresh, tmp_path, 1)
    assert_equal(parameters(fresh), parameters(trainer))
    assert read_record(tmp_path / "iter_0000001").content == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000001", "latest_checkpointed_iteration.txt"]


@pytest.mark.parametrize("whole", [False, True])
def test_a_save_that_is_given_up_leaves_nothing(model: Path, tmp_path: Path, whole: bool) -> None:
    trainer = Trainer(model, SETTINGS)
    checkpoint.save(trainer, tmp_path, 1, background=False).wait()
    pending = checkpoint.save(trainer, tmp_path, 1, background=True)
    pending.prepare("lost", whole=whole)

    assert not pending.is_in_place()
    pending.abandon()

    assert read_record(tmp_path / "iter_0000001").content == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000001", "latest_checkpointed_iteration.txt"]


def test_the_learning_rate_of_the_config_in_force_counts(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model, SETTINGS)
    train(trainer, range(2))
    checkpoint.save(trainer, tmp_path, 2, background=False).wait()

    faster = Trainer(model, replace(SETTINGS, lr=5e-2, lr_decay_style="constant"))
    checkpoint.load(faster, tmp_path, 2)

    assert [group["lr"] for group in faster.optimizer.param_groups] == [5e-2, 5e-2]
    assert faster.scheduler.num_steps == 2


def test_weights_alone_can_be_loaded(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model, replace(SETTINGS, dtype="bfloat16"))
    train(trainer, range(2))
    pending = checkpoint.save(trainer, tmp_path, 2, background=True)
    pending.wait_for_weights()

    fresh = Trainer(model, replace(SETTINGS, dtype="bfloat16"))
    checkpoint.load(fresh, tmp_path, 2, with_optimizer=False)

    assert_equal(parameters(fresh), parameters(trainer))
    assert fresh.scheduler.num_steps == 0
    pending.wait()

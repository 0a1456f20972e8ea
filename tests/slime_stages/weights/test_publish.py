from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import xxhash

from slime_stages.errors import DataError, MissingInputError
from slime_stages.weights.publish import (
    check_hf_folder,
    check_weights,
    finish_folder,
    prune_weights,
    publish_link,
    unpublished_folder,
    verify_weights,
)
from slime_stages.weights.record import WeightsRecord, read_weights_record


def make_model(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def publish(target: Path, weights: bytes = b"weights") -> WeightsRecord:
    with unpublished_folder(target) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(weights)
        record = finish_folder(folder, int(target.name))
        folder.rename(target)
    return record


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_published_version_has_a_record_with_the_digest_of_each_file(tmp_path: Path) -> None:
    record = publish(tmp_path / "000013")

    assert names(tmp_path) == ["000013"]
    assert names(tmp_path / "000013") == ["config.json", "model.safetensors", "weights.json"]
    assert record.version == 13
    assert record.files["model.safetensors"].bytes == 7
    assert record.files["model.safetensors"].digest == xxhash.xxh3_128_hexdigest(b"weights")
    assert read_weights_record(tmp_path / "000013") == record
    assert verify_weights(tmp_path / "000013") == record


def test_digests_that_are_known_are_not_computed_again(tmp_path: Path) -> None:
    with unpublished_folder(tmp_path / "000001") as folder:
        (folder / "config.json").write_text("{}")
        record = finish_folder(folder, 1, digests={"config.json": "as told"})

    assert record.files["config.json"].digest == "as told"


def test_the_digest_of_a_version_depends_on_its_files_alone(tmp_path: Path) -> None:
    first, second, third = (
        publish(tmp_path / "000001"),
        publish(tmp_path / "000002"),
        publish(tmp_path / "000003", b"x"),
    )

    assert first.digest == second.digest != third.digest


def test_nothing_is_left_of_a_version_that_was_not_published(tmp_path: Path) -> None:
    with unpublished_folder(tmp_path / "000001") as folder:
        (folder / "config.json").write_text("{}")

    assert names(tmp_path) == []


def test_version_zero_links_to_the_model_folder_and_leaves_it_alone(tmp_path: Path) -> None:
    source = make_model(tmp_path / "model")
    (source / "pytorch_model.bin").write_bytes(b"the same weights")
    (source / "weights.json").write_text("not ours")

    record = publish_link(source, tmp_path / "weights" / "000000")

    target = tmp_path / "weights" / "000000"
    assert (target / "model.safetensors").readlink() == source / "model.safetensors"
    assert names(target) == ["config.json", "model.safetensors", "tokenizer.json", "weights.json"]
    assert (source / "weights.json").read_text() == "not ours"
    assert (record.version, record.source) == (0, str(source))
    assert verify_weights(target) == record
    assert publish_link(source, target) == record


def test_links_to_another_model_do_not_take_the_place_of_a_version(tmp_path: Path) -> None:
    publish_link(make_model(tmp_path / "model"), tmp_path / "weights" / "000000")

    with pytest.raises(DataError, match="000000 is published already, with digest"):
        publish_link(make_model(tmp_path / "other", b"others"), tmp_path / "weights" / "000000")

    assert (tmp_path / "weights" / "000000" / "model.safetensors").read_bytes() == b"weights"
    assert names(tmp_path / "weights") == ["000000"]


def test_links_to_a_model_folder_that_moved_or_changed_are_refused(tmp_path: Path) -> None:
    source = make_model(tmp_path / "model")
    publish_link(source, tmp_path / "000000")

    (source / "model.safetensors").write_bytes(b"trained further")
    with pytest.raises(DataError, match="has 15 bytes, 7 were published") as error:
        check_weights(tmp_path / "000000")
    assert error.value.hint == f"restore {source}"
    source.rename(tmp_path / "elsewhere")
    with pytest.raises(MissingInputError, match="have lost"):
        check_weights(tmp_path / "000000")


def test_an_altered_file_of_the_same_size_is_found_by_its_digest(tmp_path: Path) -> None:
    publish(tmp_path / "000001")
    (tmp_path / "000001" / "model.safetensors").write_bytes(b"weightz")

    check_weights(tmp_path / "000001")
    with pytest.raises(DataError, match=r"were altered: model.safetensors"):
        verify_weights(tmp_path / "000001")


def test_old_versions_are_removed_but_not_the_model_that_links_point_to(tmp_path: Path) -> None:
    source = make_model(tmp_path / "model")
    folder = tmp_path / "weights"
    publish_link(source, folder / "000000")
    for version in range(1, 8):
        publish(folder / f"{version:06d}")

    removed = prune_weights(folder, 2, 5, {3})

    assert [path.name for path in removed] == ["000001", "000002", "000004"]
    assert names(folder) == ["000000", "000003", "000005", "000006", "000007"]
    prune_weights(folder, 1, None, set())
    assert names(folder) == ["000007"]
    assert names(source) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_everything_that_a_model_folder_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="does not exist"):
        check_hf_folder(tmp_path / "model")
    (tmp_path / "model").mkdir()
    with pytest.raises(
        MissingInputError, match=r"without config.json, weights \(model.safetensors, or .*\), a tokenizer"
    ):
        check_hf_folder(tmp_path / "model")


def test_a_model_folder_without_a_tokenizer_is_told_to_copy_one(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "tokenizer.json").unlink()

    with pytest.raises(MissingInputError, match=r"without a tokenizer \(tokenizer.json\)$") as error:
        check_hf_folder(model)

    assert error.value.hint == f"copy the tokenizer's files of the base model into {model}"


def test_weights_of_another_format_are_told_to_be_converted(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")

    with pytest.raises(MissingInputError) as error:
        check_hf_folder(model)

    assert "save_pretrained" in str(error.value.hint)


def test_a_file_that_the_index_lists_must_be_there(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    shards = [model / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (model / "model.safetensors").rename(shards[0])
    index = {"weight_map": {"a": shards[0].name, "b": shards[1].name}}
    (model / "model.safetensors.index.json").write_bytes(orjson.dumps(index))

    with pytest.raises(MissingInputError, match=r"without model-00002-of-00002.safetensors"):
        check_hf_folder(model)
    shards[1].write_bytes(b"more")
    assert check_hf_folder(model) == shards


def test_a_pointer_instead_of_weights_is_recognised(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")

    with pytest.raises(DataError, match="is a Git LFS pointer") as error:
        check_hf_folder(model)

    assert error.value.hint == f"git -C {model} lfs pull"


def test_publishing_and_pruning_need_no_torch() -> None:
    program = (
        "import sys, slime_stages.weights.publish, slime_stages.weights.checkpoints;"
        "print([name for name in ('torch', 'numpy', 'transformers', 'pydantic') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == "[]"

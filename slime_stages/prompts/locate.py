"""From what `--prompt-data` says to rows: files, folders of files, saved and cached data sets, and slices of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.prompts.files import SourceRow, read_file
from slime_stages.prompts.names import HUB, HubName, hub_name, split_folder, split_slice

FOLDER_SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json")
"""A folder is read as the first of these that it holds: small `.json` files often lie beside the data."""
SPLIT_OF_FILE = re.compile(r"(train|test|validation|valid|val|dev|eval)(?=[-._])")
USUAL_SPLIT = "train"


def read_rows(prompt_data: str) -> Iterator[SourceRow]:
    """The rows of a source, or of a slice of it, as Python counts.

    MissingInputError if there is nothing of that name, UsageError for what cannot be prompt data, DataError for what
    cannot be read.
    """
    source, start, stop = split_slice(prompt_data)
    files = files_of(source)
    if (start or 0) < 0 or (stop or 0) < 0:
        count = sum(1 for _ in rows_of(files))
        start, stop, _ = slice(start, stop).indices(count)
    return islice(rows_of(files), start, stop)


def rows_of(files: list[Path]) -> Iterator[SourceRow]:
    return chain.from_iterable(map(read_file, files))


def files_of(source: str) -> list[Path]:
    """The files of a source, in the order in which they are read."""
    if source.startswith(HUB):
        return files_of_name(hub_name(source))
    folder, split = split_folder(source)
    path = Path(folder)
    if not path.exists():
        raise MissingInputError(f"there is no prompt data {path}", hint=f"ls {path.parent}; then set --prompt-data")
    return files_of_folder(path, split) if path.is_dir() else [path]


def files_of_folder(folder: Path, split: str | None) -> list[Path]:
    """What `datasets` saved there with `save_to_disk`, or else the data files that lie there."""
    if (folder / "dataset_dict.json").is_file():
        splits = read_json_file(folder / "dataset_dict.json")["splits"]
        return saved_files(folder / choose_split(splits, split, str(folder)))
    if (folder / "state.json").is_file():
        return saved_files(folder)
    if split is not None and (folder / split).is_dir():
        return files_of_folder(folder / split, None)
    files = data_files(folder) or (data_files(folder / "data") if (folder / "data").is_dir() else [])
    if not files:
        raise UsageError(f"{folder} holds no {', '.join(FOLDER_SUFFIXES)}", hint=f"ls {folder}; name a folder of one")
    return files_of_split(files, split, str(folder))


def data_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._")
    for suffix in FOLDER_SUFFIXES:
        if found := [path for path in files if path.suffix == suffix]:
            return found
    return []


def files_of_split(files: list[Path], split: str | None, where: str) -> list[Path]:
    """Those of `train-00000-of-00002.parquet`, `test-…` that belong to one split; all if their names tell none."""
    names = {path: match[1] for path in files if (match := SPLIT_OF_FILE.match(path.name))}
    if not names and split is None:
        return files
    chosen = choose_split(dict.fromkeys(names.values()), split, where)
    return [path for path in files if names.get(path) == chosen]


def choose_split(splits: Any, wanted: str | None, where: str) -> str:
    """The one asked for, `train`, or the only one there is."""
    names = sorted(map(str, splits))
    if wanted is not None and wanted in names:
        return wanted
    if wanted is None and USUAL_SPLIT in names:
        return USUAL_SPLIT
    if wanted is None and len(names) == 1:
        return names[0]
    has = f"has the splits {', '.join(names)}" if names else "has no splits"
    hint = f"--prompt-data {where}:{names[0]}" if names else f"--prompt-data {where}"
    raise UsageError(f"{where} {has}{', not ' + wanted if wanted else ', and none is named'}", hint=hint)


def saved_files(folder: Path) -> list[Path]:
    state = read_json_file(folder / "state.json")
    return [folder / file["filename"] for file in state["_data_files"]]


def read_json_file(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); the data set there is not whole") from error
    if not isinstance(values, dict) or not values.keys() & {"splits", "_data_files"}:
        raise DataError(f"{path} is not what `save_to_disk` writes", hint=f"ls {path.parent}")
    return values


def files_of_name(wanted: HubName) -> list[Path]:
    """Of a data set that was loaded, or whose repository was downloaded, on this file system before."""
    if files := files_of_loaded(wanted):
        return files
    folder = downloaded_folder(wanted.name)
    if folder is None:
        load = ", ".join(repr(word) for word in (wanted.name, wanted.config) if word)
        raise MissingInputError(
            f"the data set {wanted.name} is not in the offline cache, and no file or folder is called so",
            hint=f"where there is a network: hf download --repo-type dataset {wanted.name}, "
            f"or python -c 'import datasets; datasets.load_dataset({load})'",
        )
    folder = folder / wanted.config if wanted.config and (folder / wanted.config).is_dir() else folder
    return files_of_folder(folder, wanted.split)


def files_of_loaded(wanted: HubName) -> list[Path]:
    """The Arrow files that `datasets.load_dataset` left in its cache."""
    from datasets.packaged_modules.cache.cache import Cache

    name = wanted.name.rpartition("/")[2]
    try:
        cached = Cache(dataset_name=name, repo_id=wanted.name, config_name=wanted.config, version="auto", hash="auto")
    except ValueError as error:
        reason, *more = str(error).splitlines()
        if not more:
            return []
        raise UsageError(
            f"{HUB}{wanted.name} has other configurations: {' '.join(more) if wanted.config else reason}",
            hint=f"--prompt-data {HUB}{wanted.name}:CONFIG:{wanted.split or USUAL_SPLIT}",
        ) from error
    split = choose_split(cached.info.splits or {}, wanted.split, f"{HUB}{wanted.name}")
    return [Path(file["filename"]) for file in cached.as_dataset(split=split).cache_files]


def downloaded_folder(name: str) -> Path | None:
    """The newest snapshot of the data set's repository in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, repo_type="dataset", local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None

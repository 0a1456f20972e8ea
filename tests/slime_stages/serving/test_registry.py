from __future__ import annotations

import json
from pathlib import Path

from slime_stages.serving.engine import Engine
from slime_stages.serving.registry import find_engines, register_engine


def test_only_engines_that_answer_are_found(engine: Engine, tmp_path: Path) -> None:
    register_engine(tmp_path, "actor-0", url=engine.url, pid=engine.pid, weight_version="0")
    register_engine(tmp_path, "actor-1", url="http://127.0.0.1:1", pid=1)
    (tmp_path / "broken.json").write_text("{")

    found = find_engines(tmp_path)

    assert [(record.name, record.url, record.weight_version) for record in found] == [("actor-0", engine.url, "0")]


def test_a_record_is_one_file_of_json(tmp_path: Path) -> None:
    path = register_engine(tmp_path / "engines", "actor-0", url="http://node7:30000", pid=42)

    record = json.loads(path.read_text())

    assert path.name == "actor-0.json"
    assert (record["url"], record["pid"], record["weight_version"]) == ("http://node7:30000", 42, None)
    assert list(path.parent.iterdir()) == [path]

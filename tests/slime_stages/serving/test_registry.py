from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

from slime_stages.serving.engine import Engine
from slime_stages.serving.registry import SERVICE, find_engines, read_records, register_engine, register_fleet
from slime_stages.serving.served import Served


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


def test_a_service_tells_all_its_addresses(tmp_path: Path) -> None:
    served = Served(
        urls=("http://10.0.0.1:3000",),
        engine_count=2,
        engine_urls=("http://10.0.0.1:3001", "http://10.0.0.1:3002"),
        model_urls={"actor": "http://10.0.0.1:3000", "judge": "http://10.0.0.1:3003"},
    )

    register_fleet(
        tmp_path, "service-7", served, updated_urls=served.engine_urls, kind=SERVICE, weight_version="3", has_gpus=True
    )
    [record] = read_records(tmp_path)

    assert record.served("3@0a") == replace(served, weight_version="3@0a")
    assert [handle.url for handle in record.handles()] == list(served.engine_urls)
    assert (record.kind, record.has_gpus, record.pid) == ("service", True, os.getpid())


def test_an_address_that_only_another_machine_has_is_not_asked(engine: Engine, tmp_path: Path) -> None:
    path = register_engine(tmp_path, "actor-0", url=engine.url, pid=engine.pid)
    path.write_text(path.read_text().replace(socket.gethostname(), "another-node"))

    assert find_engines(tmp_path) == []

"""What an enclosure shows, as both ways in read it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slime_stages.isolation.enclosure import SYSTEM, Bind, Enclosure, python_binds, view_of


def test_an_enclosure_comes_back_from_json_as_it_was() -> None:
    enclosure = Enclosure(
        image="/i", binds=(Bind(source="/a", target="/b", writable=True),), scratch=("/x", "/y"), seconds=1.5
    )

    assert Enclosure.from_json(enclosure.to_json()) == enclosure


def test_binds_are_mounted_parents_first_from_where_their_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    binds = (Bind(source=f"{tmp_path}/link", target="/a/b/c"), Bind(source=str(tmp_path), target="/a"))

    view = view_of(Enclosure(binds=binds))

    assert [(bind.source, bind.target) for bind in view.binds[-2:]] == [
        (str(tmp_path), "/a"),
        (f"{tmp_path}/real", "/a/b/c"),
    ]


def test_names_of_other_machines_are_seen_only_with_a_network() -> None:
    assert "/etc/hosts" in view_of(Enclosure()).files
    assert "/etc/hosts" not in view_of(Enclosure(has_network=True)).files
    assert "/etc/hosts" in [bind.target for bind in view_of(Enclosure(has_network=True)).binds]


def test_an_image_is_seen_without_the_machines_programs() -> None:
    view = view_of(Enclosure(image="/image"))

    assert (view.links, view.files, view.binds) == ({}, {}, ())


def test_python_is_all_that_is_needed_to_run_python() -> None:
    folders = [bind.source for bind in python_binds()]

    assert all(not f"{folder}/".startswith(tuple(f"{path}/" for path in SYSTEM)) for folder in folders)
    within = (*SYSTEM, *folders)
    libraries = subprocess.run(["ldd", os.path.realpath(sys.executable)], capture_output=True, text=True, check=True)
    needed = [word for word in libraries.stdout.split() if word.startswith("/")]
    assert [path for path in needed if not path.startswith(within)] == []

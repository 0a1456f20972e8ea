from __future__ import annotations

import pytest

from slime_stages.serving import launch
from slime_stages.serving.devices import VISIBLE, visible_devices


@pytest.mark.parametrize(
    ("told", "devices"),
    [("2,5", ("2", "5")), ("", ()), ("-1", ()), ("GPU-8a, MIG-1b", ("GPU-8a", "MIG-1b")), ("NoDevFiles", ())],
)
def test_the_environment_says_which_gpus_a_job_has(
    told: str, devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ACCELERATOR_DEVICES", ("/dev/null",))
    monkeypatch.setenv(VISIBLE, told)

    assert visible_devices() == devices


def test_names_of_gpus_that_are_not_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ACCELERATOR_DEVICES", ("/dev/no-such-device",))
    monkeypatch.setenv(VISIBLE, "0,1")

    assert visible_devices() == ()

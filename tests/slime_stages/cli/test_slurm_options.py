from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.main import get_command

from slime_stages.cli.options import collect, takes_config_flags
from slime_stages.cli.slurm_options import slurm_options, take_slurm_options, takes_slurm_options


def test_options_of_sbatch_are_taken_off_a_command_line() -> None:
    words = [
        "--n",
        "3",
        "--slurm-partition",
        "low",
        "--slurm-rollout-gpus=2",
        "--slurm-exclusive",
        "-",
        "--slurm-nice=5",
    ]

    assert take_slurm_options(words) == (
        {"partition": "low", "rollout.gpus": "2", "exclusive": True, "nice": "5"},
        ["--n", "3", "-"],
    )


def test_a_name_that_only_begins_like_a_stage_is_sbatchs_own() -> None:
    assert take_slurm_options(["--slurm-rollouts-x", "1", "--slurm-train", "1"])[0] == {"rollouts-x": "1", "train": "1"}


def test_an_option_before_another_flag_has_no_value_and_nothing_is_taken_after_two_dashes() -> None:
    assert take_slurm_options(["--slurm-new", "--force", "--", "--slurm-x", "1"]) == (
        {"new": True},
        ["--force", "--", "--slurm-x", "1"],
    )


def built(function: Any) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(cls=function.command_class)(function)
    return get_command(single)


def test_a_plain_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    @takes_slurm_options
    def command(ctx: typer.Context, n: int = 1) -> None:
        print(n, slurm_options(ctx))

    built(command).main(["--slurm-mem", "1G", "--n", "2"], standalone_mode=False)
    assert capsys.readouterr().out == "2 {'mem': '1G'}\n"

    built(command).main(["--help"], standalone_mode=False)
    assert "--slurm-STAGE-OPTION [VALUE]" in capsys.readouterr().out


def test_a_command_with_settings_takes_both(capsys: pytest.CaptureFixture[str]) -> None:
    @takes_slurm_options
    @takes_config_flags
    def command(ctx: typer.Context, n: int = 1) -> None:
        print(n, slurm_options(ctx), collect(ctx).words)

    built(command).main(["--lr", "1e-6", "--slurm-train-mem", "1G", "--n", "2"], standalone_mode=False)

    assert capsys.readouterr().out == "2 {'train.mem': '1G'} {'lr': ['1e-6']}\n"

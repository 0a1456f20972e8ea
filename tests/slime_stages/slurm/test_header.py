from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.slurm.header import Header, read_header, with_overrides

ROOT = Path(__file__).parents[3]
PROGRAM = 'exec python -m stages.rollout "$@"\n'


def header(folder: Path, text: str, stage: str = "rollout") -> Header:
    path = folder / f"{stage}.sbatch"
    path.write_text(text)
    return read_header(path, stage)


@pytest.mark.parametrize("stage", ["rollout", "reward", "train", "sync", "chain", "serve"])
def test_our_own_scripts_are_headers(stage: str) -> None:
    read = read_header(ROOT / "sbatch" / f"{stage}.sbatch", stage)

    assert read.python == "python"
    assert "source .venv/bin/activate" in read.setup
    assert "time" in read.directives


def test_options_are_read_in_all_of_sbatchs_spellings(tmp_path: Path) -> None:
    read = header(
        tmp_path,
        "#!/bin/bash\n"
        "#SBATCH -p gpu -A mine   # whom to charge\n"
        "#SBATCH --gpus 2 --exclusive\n"
        "#SBATCH -t1:00:00\n"
        "#SBATCH --comment='two words'\n"
        "##SBATCH --mem=1G\n"
        "#SBATCH --new-in-slurm-99=x\n" + PROGRAM,
    )

    assert read.directives == {
        "partition": "gpu",
        "account": "mine",
        "gpus": "2",
        "exclusive": True,
        "time": "1:00:00",
        "comment": "two words",
        "new-in-slurm-99": "x",
    }
    assert read.place("time") == f"{tmp_path}/rollout.sbatch:4"


@pytest.mark.parametrize(
    "option", ["--output=x", "-o x", "-e x", "--array=0-3", "-J name", "--signal=B:USR1", "--wait", "-D /tmp", "-M a"]
)
def test_an_option_that_is_ours_is_refused_with_its_line_and_what_does_instead(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match=r"rollout\.sbatch:3: --[a-z-]+ is set by slime-stages") as refused:
        header(tmp_path, f"#!/bin/bash\n#SBATCH --mem=1G\n#SBATCH {option}\n{PROGRAM}")

    assert str(refused.value.hint).startswith("remove it: ") or "type the command" in str(refused.value.hint)


def test_the_lines_before_the_program_are_the_set_up_as_they_are(tmp_path: Path) -> None:
    read = header(
        tmp_path,
        "#!/bin/bash -l\n# What this is.\n#SBATCH --mem=1G\n\nmodule load cuda\n# why\nexport X=1\n\n"
        'exec apptainer exec --nv \\\n  $IMAGE python3 -m stages.rollout "$@"\n\n# the end\n',
    )

    assert read.setup == ("module load cuda", "# why", "export X=1", "")
    assert read.python.split() == ["apptainer", "exec", "--nv", "$IMAGE", "python3"]
    assert read.shell == "#!/bin/bash -l"


def test_options_of_the_scripts_own_srun_are_kept(tmp_path: Path) -> None:
    program = 'exec srun --mpi=none -K1 .venv/bin/python -m stages.train "$@"\n'
    read = header(tmp_path, "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2\n" + program, "train")

    assert read.srun == ("--mpi=none", "-K1")
    assert read.python == ".venv/bin/python"
    assert read.directives == {"nodes": "2", "ntasks-per-node": "2"}


def test_the_chains_python_stands_beside_its_program(tmp_path: Path) -> None:
    assert (
        header(tmp_path, '#!/bin/bash\nexec /opt/bin/slime-stages advance "$@"\n', "chain").python == "/opt/bin/python"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "#!/bin/bash\nmodule load x\n#SBATCH --mem=1G\n" + PROGRAM,
            r":3: sbatch does not read options below .* line 2",
        ),
        ('#!/bin/bash\nexec python -m stages.reward "$@"\n', r":2: the last command .* does not run rollout"),
        ("#!/bin/bash\npython -m stages.rollout\n", r":2: the last command"),
        ("#!/bin/bash\n#SBATCH --mem=1G\n", "has no command"),
        ("#!/bin/sh -e\n" + PROGRAM, ":1: .* script for bash"),
        ("#!/bin/bash\n#SBATCH --nodes=2\n" + PROGRAM, ":2: rollout runs as one task on one node"),
        ("#!/bin/bash\n#SBATCH --comment='open\n" + PROGRAM, ":2: .*No closing quotation"),
        ("#!/bin/bash\n#SBATCH hetjob\n" + PROGRAM, ":2: .*heterogeneous"),
        ("#!/bin/bash\n#SBATCH mem=1G\n" + PROGRAM, ":2: `mem=1G` is no option"),
    ],
)
def test_a_script_that_cannot_be_one_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        header(tmp_path, text)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"jobs of sync are described by .*/sync\.sbatch, which cannot be read"):
        read_header(tmp_path / "sync.sbatch", "sync")


def test_the_command_line_overrides_the_file_and_a_stages_option_the_general_one(tmp_path: Path) -> None:
    read = header(tmp_path, "#!/bin/bash\n#SBATCH -p gpu --mem=8G --requeue\n" + PROGRAM)

    new = with_overrides(
        read,
        {"rollout.partition": "low", "partition": "all", "train.gpus": "4", "mem-per-cpu": "1G", "no-requeue": True},
    )

    assert new.directives == {"partition": "low", "mem-per-cpu": "1G", "no-requeue": True}
    assert new.place("partition") == "--slurm-rollout-partition"
    assert new.place("mem-per-cpu") == "--slurm-mem-per-cpu"


def test_an_override_of_an_option_that_is_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--slurm-rollout-output: --output is set by slime-stages"):
        with_overrides(header(tmp_path, "#!/bin/bash\n" + PROGRAM), {"rollout.output": "x"})


def test_sbatchs_words_lead_to_the_line_they_are_about(tmp_path: Path) -> None:
    read = header(tmp_path, "#!/bin/bash\n#SBATCH --mem=8G\n#SBATCH -p nowhere\n#SBATCH --frobnicate=1\n" + PROGRAM)
    path = tmp_path / "rollout.sbatch"

    assert read.place_of_refusal("invalid partition specified: nowhere") == f"{path}:3"
    assert read.place_of_refusal("Memory specification can not be satisfied") == f"{path}:2"
    assert read.place_of_refusal("unrecognized option '--frobnicate=1'") == f"{path}:4"
    assert read.place_of_refusal("Requested node configuration is not available") == str(path)
